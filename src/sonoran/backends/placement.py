"""Threads and cores of a backend: how many, and where they run."""

from __future__ import annotations

from sonoran import _native
from sonoran.errors import ConfigError


def parse_cores(text: str) -> tuple[int, ...]:
    """Read a list such as ``"0,2-5"`` into core numbers; raises ConfigError naming the bad part."""
    cores: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ConfigError(f"cores {text!r}: cannot read {part.strip()!r}; write them like 0,2-5")
        begin, end = int(first), int(last) if dash else int(first)
        if end < begin:
            raise ConfigError(f"cores {text!r}: the range {part.strip()!r} is backwards")
        cores.extend(range(begin, end + 1))
    if len(set(cores)) != len(cores):
        raise ConfigError(f"cores {text!r}: a core is named twice")
    return tuple(cores)


def place_threads(threads: int | None, cores: tuple[int, ...] | None) -> tuple[int, tuple[int, ...]]:
    """Settle the number of threads and the cores they are pinned to (empty: not pinned).

    Default: one thread for each core named, or for each core that this process may use. Raises ConfigError for
    cores that the process may not use and for more threads than cores named.
    """
    available = _native.available_cores() or [0]
    if cores is not None:
        foreign = [core for core in cores if core not in available]
        if foreign or not cores:
            raise ConfigError(f"cores {foreign} cannot be used; this process may use {available}")
    count = threads if threads is not None else len(cores) if cores is not None else len(available)
    if count < 1:
        raise ConfigError(f"threads must be at least 1, got {count}")
    if cores is not None and count > len(cores):
        raise ConfigError(f"{count} threads do not fit {len(cores)} cores; name more cores or fewer threads")
    return count, cores or ()
