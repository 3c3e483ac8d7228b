"""What a server is told when it starts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from sonoran.errors import ConfigError
from sonoran.models.untrusted import read_text

MIN_KEY_LENGTH = 8
KEY_VARIABLE = "SONORAN_API_KEY"
"""Environment variable with keys, separated by commas."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """Addresses, limits and timeouts (seconds). ``names`` are those that clients may call the model by.

    Raises ConfigError for what cannot be, and for an address that others reach while there are no keys.
    """

    names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    keys: tuple[str, ...] = ()
    insecure_no_key: bool = False
    cors_origins: tuple[str, ...] = ()
    max_queue: int = 64  # samples that wait, beside those that run
    max_queued_tokens: int = 65_536  # of prompts that were not begun
    queue_timeout: float = 60.0
    request_timeout: float = 600.0
    drain_timeout: float = 30.0
    keep_alive: float = 15.0
    stall_timeout: float = 30.0
    max_body: int = 4 * 2**20
    page: bool = True
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None

    def __post_init__(self) -> None:
        if not self.names or not all(self.names):
            raise ConfigError("a server needs at least one name for its model")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be from 0 (any) to 65535, got {self.port}")
        for name, least in (
            ("max_queue", 0),
            ("max_queued_tokens", 1),
            ("queue_timeout", 0.001),
            ("request_timeout", 0.001),
            ("drain_timeout", 0),
            ("keep_alive", 0.05),
            ("stall_timeout", 0.05),
            ("max_body", 1024),
        ):
            if not getattr(self, name) >= least:
                raise ConfigError(f"{name} must be at least {least:g}, got {getattr(self, name)!r}")
        if any(len(key) < MIN_KEY_LENGTH for key in self.keys):
            raise ConfigError(f"a key must have at least {MIN_KEY_LENGTH} characters")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ConfigError("TLS needs a certificate and its key: give both files")
        if not (self.is_loopback or self.keys or self.insecure_no_key):
            raise ConfigError(
                f"everybody who reaches {self.host} could use this server; give it keys "
                f"(--api-key-file, or {KEY_VARIABLE}), or say --insecure-no-key"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def read_keys(path: Path | None, environment: str | None) -> tuple[str, ...]:
    """Return the keys in a file, one a line, and those of an environment variable, separated by commas.

    Raises ConfigError for a file that cannot be read or has none.
    """
    keys = [key.strip() for key in (environment or "").split(",") if key.strip()]
    if path is None:
        return tuple(keys)
    lines = read_text(path, ConfigError).splitlines()
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not found:
        raise ConfigError(f"{path} has no key; write one a line")
    return (*keys, *found)
