"""CURVE keys: one file for the worker, one for those who may use it.

The worker's file has its secret and the public key of its clients; the client's file has the clients' secret
and the public key of the worker. Both ends then know each other, and nobody else can connect or listen.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import msgspec
import zmq
from zmq.utils import z85

from sonoran.errors import ConfigError
from sonoran.models.untrusted import refusing

Role = Literal["worker", "client"]

WORKER_FILE = "worker.key"
CLIENT_FILE = "client.key"
_LONGEST_FILE = 4096
_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


@dataclass(frozen=True, slots=True)
class Keys:
    """One side's pair of keys and the other side's public key, in Z85."""

    role: Role
    public: str
    secret: str
    peer: str

    def __repr__(self) -> str:
        return f"Keys(role={self.role!r}, public={self.public!r})"


def key_pairs() -> tuple[Keys, Keys]:
    """Return new keys for a client and its worker."""
    worker_public, worker_secret = (key.decode() for key in zmq.curve_keypair())
    client_public, client_secret = (key.decode() for key in zmq.curve_keypair())
    return (
        Keys("client", client_public, client_secret, worker_public),
        Keys("worker", worker_public, worker_secret, client_public),
    )


def keygen(folder: Path) -> tuple[Path, Path]:
    """Write a new pair of files, readable by their owner only; return those of worker and client.

    Existing files are never overwritten: ConfigError names the one in the way.
    """
    client, worker = key_pairs()
    paths = folder / WORKER_FILE, folder / CLIENT_FILE
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} exists already; remove it or choose another folder")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(paths[0], worker)
        _write(paths[1], client)
    except OSError as error:
        raise ConfigError(f"cannot write keys to {folder}: {error}") from error
    return paths


def load_keys(path: str | Path, role: Role) -> Keys:
    """Read a key file of that role. Raises ConfigError for one that others may read, or that is damaged."""
    file = Path(path)
    with refusing(file, ConfigError):
        mode, data = _read(file)
        if mode & 0o077:
            raise ConfigError(
                f"the key file {file} has mode {mode:o}; others may not use it: chmod 600 {file}"
            )
        keys = _parse(file, data)
        if keys.role != role:
            raise ConfigError(f"{file} holds the {keys.role}'s keys; the {role} needs {role}.key")
        return keys


def _read(path: Path) -> tuple[int, bytes]:
    """Return a key file's mode and contents: an ordinary file, of a size that a key file has."""
    try:
        # Without waiting: a pipe that nobody writes to must not hold us up.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_LONGEST_FILE + 1) if stat.S_ISREG(mode) else None
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise ConfigError(f"cannot read the key file {path}: {error}") from None
    if data is None:
        raise ConfigError(f"{path} is no key file: it is not an ordinary file")
    if len(data) > _LONGEST_FILE:
        raise ConfigError(f"{path} is no key file: it has more than {_LONGEST_FILE} bytes")
    return stat.S_IMODE(mode), data


def _write(path: Path, keys: Keys) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        json.dump(asdict(keys), file, indent=2)
        file.write("\n")


def _parse(path: Path, data: bytes) -> Keys:
    try:
        keys = msgspec.json.decode(data, type=Keys)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is no key file ({error}); make one with: sonoran draft-worker keygen"
        ) from None
    for name in ("public", "secret", "peer"):
        if not _Z85.fullmatch(getattr(keys, name)):
            raise ConfigError(f"{path} is damaged: its {name} key is not one of 40 characters of Z85")
    try:
        fits = zmq.curve_public(keys.secret.encode()).decode() == keys.public
        z85.decode(keys.peer.encode())
    except (zmq.ZMQError, ValueError):
        fits = False
    if not fits:
        raise ConfigError(f"{path} is damaged: its public key is not that of its secret key")
    return keys
