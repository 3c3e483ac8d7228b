"""The folder of fetched models: where it is, what lies in it, what an interrupted pull left there."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from sonoran.errors import ConfigError
from sonoran.models.registry import ModelEntry
from sonoran.models.untrusted import refusing

CHUNK = 1 << 22  # bytes read at a time when hashing or copying


def cache_dir() -> Path:
    """The cache folder: SONORAN_CACHE if set, otherwise the platform's. It need not exist.

    Raises ConfigError for a user who has no home folder.
    """
    try:
        return _cache_dir()
    except RuntimeError as error:
        raise ConfigError(f"no folder for the cache: {error} Set SONORAN_CACHE to one") from error


def _cache_dir() -> Path:
    chosen = os.environ.get("SONORAN_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "sonoran"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "sonoran"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sonoran"


def model_path(entry: ModelEntry, cache: Path) -> Path:
    """Where the checked file of a model lies once it has been pulled."""
    return cache / "models" / entry.file


def is_cached(entry: ModelEntry, cache: Path) -> bool:
    """True when the model's file is there with its full size; ``is_unchanged`` knows whether it is the right one."""
    path = model_path(entry, cache)
    with refusing(path):
        return path.is_file() and path.stat().st_size == entry.size


def is_unchanged(path: Path, sha256: str, progress: Callable[[int], None] | None = None) -> bool:
    """Whether a cached file still has the hash that it should have.

    It is hashed once; size, time and inode for which the hash was right are kept beside it, and vouch for it from
    then on. Where they cannot be kept, it is hashed every time. OSError for a file that cannot be read.
    """
    state = _state(path, sha256)
    try:
        if mark_path(path).read_text(encoding="ascii", errors="replace") == state:
            return True
    except OSError:
        pass
    if file_sha256(path, progress) != sha256:
        return False
    remember(path, sha256, state)
    return True


def remember(path: Path, sha256: str, state: str | None = None) -> None:
    """Keep that a file was found to have that hash, if the folder may be written."""
    now = _state(path, sha256)
    if state in (None, now):
        try:
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
            with os.fdopen(handle, "w", encoding="ascii") as stream:
                stream.write(now)
            Path(name).chmod(0o644)
            Path(name).replace(mark_path(path))
        except OSError:
            return


def mark_path(path: Path) -> Path:
    """Where it is kept for which state of a file its hash was right."""
    return path.with_name(path.name + ".checked")


def _state(path: Path, sha256: str) -> str:
    found = path.stat()
    return f"{sha256} {found.st_size} {found.st_mtime_ns} {found.st_ino}"


def work_dir(entry: ModelEntry, cache: Path) -> Path:
    """Folder of an unfinished pull: finished parts, and whatever a source needs meanwhile."""
    return cache / "partial" / entry.file


def lock_path(entry: ModelEntry, cache: Path) -> Path:
    """File locked while a process pulls the model."""
    return cache / "partial" / f"{entry.file}.lock"


def tree_bytes(folder: Path) -> int:
    """Bytes of all files below a folder, 0 if it does not exist; files that vanish meanwhile count as 0."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except OSError:
                continue
    return total


def file_sha256(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file as hexadecimal text; ``progress`` receives the bytes read so far."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done)
    return digest.hexdigest()
