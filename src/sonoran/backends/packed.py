"""Packed weights kept on disk, so that the next start copies them where the first one had to convert them.

A file belongs to one model file in one state, to its precision, and to the layout and kernels of a build. It is
written under another name and renamed, and read with its checksum: half a file, a damaged one and one of another
model are all the same as none. The folder is bounded; what was not read for longest goes first.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sonoran import _native
from sonoran.errors import ConfigError, ModelError
from sonoran.models.cache import cache_dir
from sonoran.models.source import ModelFile

log = logging.getLogger(__name__)

FOLDER = "packed"
SETTING = "SONORAN_PACKED_CACHE"
DEFAULT_GB = 4.0
LEAST_BYTES = 64 << 20
"""Of weights: smaller models are converted faster than one would notice."""

_HEADER = 4096
_MAGIC = b"sonoran packed weights 1\n"
_STALE_S = 3600.0  # after which a file that somebody was writing is nobody's
_SPARE_BYTES = 2 << 30  # of disk that stay free

Spec = tuple[str, str, int, int]
"""A matrix: name, packed format, outputs, inputs."""


@dataclass(frozen=True, slots=True)
class PackedKey:
    """What a file of packed weights is of; ``stem`` is its name without the suffix."""

    stem: str

    @classmethod
    def of(cls, model: ModelFile, specs: Sequence[Spec], instruction_set: str) -> PackedKey:
        """Return the key of a model file as it lies there now. Raises OSError when it cannot be looked at."""
        facts = [
            _native.packed_layout(),
            instruction_set,
            model.identity(),
            list(specs),
            [tensor.dtype for tensor in model.tensors.values()],
        ]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        return cls(f"{model.path.stem}-{digest}")


def largest_bytes() -> int:
    """Return the bytes that all files may take together; 0 is off. Raises ConfigError for a setting that is no number."""
    text = os.environ.get(SETTING, "")
    if text.lower() in ("off", "no", "false"):
        return 0
    try:
        gb = float(text or DEFAULT_GB)
    except ValueError:
        gb = -1.0
    if not 0.0 <= gb < 1e6:
        raise ConfigError(f"{SETTING} must be a number of GB (0 or off: keep nothing), got {text!r}")
    return int(gb * 1e9)


def packed_path(key: PackedKey, cache: Path | None = None) -> Path:
    """Return where the packed weights of a key lie, whether they are there or not."""
    return _folder(cache) / f"{key.stem}.packed"


def read_packed(decoder: _native.Decoder, key: PackedKey, cache: Path | None = None) -> bool:
    """Copy the weights of a key into a decoder; False when there are none, or none to be trusted."""
    path = packed_path(key, cache)
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEADER)
            about = _about(head)
            size = os.fstat(stream.fileno()).st_size
            if about is None or about[0] != decoder.weight_bytes or size != _HEADER + about[0]:
                raise ValueError("its length is wrong")
            if decoder.read_packed(stream.fileno(), _HEADER) != about[1]:
                raise ValueError("its checksum is wrong")
    except FileNotFoundError:
        return False
    except (OSError, ValueError, ModelError) as error:
        log.warning("%s is damaged (%s) and is made again", path, error)
        with suppress(OSError):
            path.unlink()
        return False
    with suppress(OSError):
        os.utime(path)  # what was read last goes last
    return True


def keep_packed(decoder: _native.Decoder, key: PackedKey, cache: Path | None = None) -> None:
    """Write the weights of a decoder where the next start finds them, if there is room; never fails."""
    size, limit = decoder.weight_bytes + _HEADER, largest_bytes()
    if size > limit:
        return
    path = packed_path(key, cache)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path.parent, limit - size)
        if shutil.disk_usage(path.parent).free < size + _SPARE_BYTES:
            return
        about = json.dumps({"bytes": decoder.weight_bytes, "digest": decoder.digest()}).encode()
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        try:
            with os.fdopen(handle, "wb", buffering=0) as stream:
                stream.write((_MAGIC + about).ljust(_HEADER, b"\n"))
                weights = memoryview(decoder.packed())  # type: ignore[arg-type]
                while len(weights):  # one call writes no more than 2 GiB
                    weights = weights[stream.write(weights) or 0 :]
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        log.info("the packed weights of %s are not kept: %s", path.stem, error.strerror or error)


def packed_files(cache: Path | None = None) -> list[tuple[str, int]]:
    """Return the name and the bytes of each file that is kept, the newest first."""
    found = [(stat.st_mtime, path.name, stat.st_size) for path, stat in _entries(_folder(cache))]
    return [(name, size) for _, name, size in sorted(found, reverse=True) if name.endswith(".packed")]


def packed_report(cache: Path | None = None) -> dict[str, int]:
    """Return how many files are kept, their bytes, and how many bytes there may be (0: it is switched off)."""
    sizes = [size for _, size in packed_files(cache)]
    return {"files": len(sizes), "bytes": sum(sizes), "largest_bytes": largest_bytes()}


def _folder(cache: Path | None) -> Path:
    return (cache or cache_dir()) / FOLDER


def _about(head: bytes) -> tuple[int, int] | None:
    """Return bytes and checksum from a header; None if it is none."""
    if len(head) != _HEADER or not head.startswith(_MAGIC):
        return None
    try:
        about = json.loads(head[len(_MAGIC) :])
        return int(about["bytes"]), int(about["digest"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _entries(folder: Path) -> list[tuple[Path, os.stat_result]]:
    found = []
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):
                found.append((path, path.stat()))
    return found


def _make_room(folder: Path, limit: int) -> None:
    """Remove the files that were not read for longest until at most ``limit`` bytes are left, and what was never
    finished."""
    kept = []
    for path, stat in _entries(folder):
        if path.suffix == ".packed":
            kept.append((stat.st_mtime, stat.st_size, path))
        elif path.suffix == ".part" and time.time() - stat.st_mtime > _STALE_S:
            with suppress(OSError):
                path.unlink()
    total = sum(size for _, size, _ in kept)
    for _, size, path in sorted(kept):
        if total <= limit:
            break
        with suppress(OSError):
            path.unlink()
        total -= size
