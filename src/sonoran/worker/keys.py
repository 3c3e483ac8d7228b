"""CURVE keys: one file for the worker, one for those who may use it.

The worker's file has its secret and the public key of its clients; the client's file has the clients' secret
and the public key of the worker. Both ends then know each other, and nobody else can connect or listen.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import zmq

from sonoran.errors import ConfigError

Role = Literal["worker", "client"]

WORKER_FILE = "worker.key"
CLIENT_FILE = "client.key"
_LENGTH = 40  # of a key in Z85


@dataclass(frozen=True, slots=True)
class Keys:
    """One side's pair of keys and the other side's public key, in Z85."""

    role: Role
    public: str
    secret: str
    peer: str

    def __repr__(self) -> str:
        return f"Keys(role={self.role!r}, public={self.public!r})"


def keygen(folder: Path) -> tuple[Path, Path]:
    """Write a new pair of files, readable by their owner only; return those of worker and client.

    Existing files are never overwritten: ConfigError names the one in the way.
    """
    worker_public, worker_secret = (key.decode() for key in zmq.curve_keypair())
    client_public, client_secret = (key.decode() for key in zmq.curve_keypair())
    paths = folder / WORKER_FILE, folder / CLIENT_FILE
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} exists already; remove it or choose another folder")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(paths[0], Keys("worker", worker_public, worker_secret, client_public))
        _write(paths[1], Keys("client", client_public, client_secret, worker_public))
    except OSError as error:
        raise ConfigError(f"cannot write keys to {folder}: {error}") from error
    return paths


def load_keys(path: str | Path, role: Role) -> Keys:
    """Read a key file of that role. Raises ConfigError for one that others may read, or that is damaged."""
    file = Path(path)
    try:
        mode = file.stat().st_mode & 0o777
        text = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the key file {file}: {error}") from error
    if mode & 0o077:
        raise ConfigError(f"the key file {file} has mode {mode:o}; others may not use it: chmod 600 {file}")
    keys = _parse(file, text)
    if keys.role != role:
        raise ConfigError(f"{file} holds the {keys.role}'s keys; the {role} needs {role}.key")
    return keys


def _write(path: Path, keys: Keys) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        json.dump(asdict(keys), file, indent=2)
        file.write("\n")


def _parse(path: Path, text: str) -> Keys:
    try:
        keys = Keys(**json.loads(text))
    except (ValueError, TypeError):
        raise ConfigError(f"{path} is no key file; make one with: sonoran draft-worker keygen") from None
    for key in (keys.public, keys.secret, keys.peer):
        if not isinstance(key, str) or len(key) != _LENGTH:
            raise ConfigError(f"{path} has a key of the wrong length; a key has {_LENGTH} characters")
    return keys
