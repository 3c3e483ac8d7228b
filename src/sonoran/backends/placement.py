"""Threads and cores of a backend: how many, and where they run."""

from __future__ import annotations

from sonoran import _native
from sonoran.errors import ConfigError


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


def split_cores(target: tuple[int, ...] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return cores for the target and for a draft beside it; the draft's are empty when there are none left.

    The target keeps those named for it; otherwise it gets all but the last of the cores that this process may use.
    """
    available = tuple(_native.available_cores())
    if target is None:
        return (available[:-1], available[-1:]) if len(available) > 1 else (available, ())
    return target, tuple(core for core in available if core not in target)[-1:]
