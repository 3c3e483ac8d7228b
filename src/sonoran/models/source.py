"""What the rest of Sonoran uses: from a name or path to an open model."""

from __future__ import annotations

import difflib
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sonoran.errors import ConfigError, DownloadError, ModelError, nearest
from sonoran.models.cache import cache_dir, is_cached
from sonoran.models.config import ModelConfig
from sonoran.models.download import Progress, pull
from sonoran.models.gguf_model import open_gguf
from sonoran.models.hub_models import cached_models, find_hub_model, pull_from_hub
from sonoran.models.registry import MODELS, meant
from sonoran.models.repository import parse_hub_name
from sonoran.models.safetensors_model import open_directory
from sonoran.models.tensors import TensorInfo
from sonoran.models.untrusted import refusing


@dataclass(frozen=True, slots=True)
class ModelFile:
    """An open model: checked on opening, its weights mapped and not read.

    ``tensors`` goes by canonical name, see TensorInfo. ``metadata`` has the key/value pairs of a GGUF file
    (``tokenizer.ggml.tokens`` and so on), decoded when asked for; empty for a directory.
    """

    path: Path
    format: Literal["gguf", "safetensors"]
    config: ModelConfig
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, Any] = field(repr=False)
    directory: Path | None  # of a model directory

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def identity(self) -> list[tuple[str, int, int, int]]:
        """Return what tells the files from others and from what they were before: name, bytes, time of change, inode.

        Raises OSError when they are not there any more.
        """
        files = [self.path] if self.directory is None else sorted(self.directory.glob("*.safetensors"))
        stats = [(file.name, file.stat()) for file in files]
        return [(name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats]

    def release(self) -> None:
        """Let go of the mapped pages that were read; a later read brings them back.

        Call it after packing weights: otherwise what was read counts as resident memory of the process.
        """
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        for mapping in {id(found): found for found in map(_mapping, self.tensors.values()) if found}.values():
            mapping.madvise(mmap.MADV_DONTNEED)


def _mapping(tensor: TensorInfo) -> mmap.mmap | None:
    base: Any = tensor.data
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None


def resolve_model(
    spec: str | Path, *, cache: Path | None = None, download: bool = True, progress: Progress | None = None
) -> Path:
    """Turn a GGUF file, a model directory, a registry name, or a name of the hub (``org/repo:Q4_K_M``) into a path.

    A file or model directory that is there wins over names. What is named and not cached is pulled, or refused with
    DownloadError if ``download`` is false. Raises ModelError when there is no such model or file; its text names the
    nearest known one.
    """
    if not isinstance(spec, (str, os.PathLike)):
        raise ConfigError(f"a model is a name or a path, got {spec!r:.100}")
    text = os.fspath(spec)
    folder = cache_dir() if cache is None else cache
    with refusing(text):
        path = Path(text).expanduser()
        if path.is_file() or (path / "config.json").is_file():
            return path
        name = parse_hub_name(text) if isinstance(spec, str) and not _beside(path) else None
    entry = MODELS.get(text.lower()) if isinstance(spec, str) else None
    if entry is not None:
        if not download and not is_cached(entry, folder):
            raise DownloadError(
                f"{entry.name} is not in the cache; get it with: sonoran models pull {entry.name}"
            )
        return pull(entry, cache=folder, progress=progress)
    if name is not None:
        return (
            find_hub_model(name, folder).path
            if not download
            else (pull_from_hub(name, cache=folder, progress=progress).path)
        )
    with refusing(text):
        raise _not_there(path, text, folder)


def _beside(path: Path) -> bool:
    """True where a path that is not there looks misspelt rather than a name of the hub."""
    if path.is_dir():
        return True
    siblings = [found.name for found in path.parent.iterdir()] if path.parent.is_dir() else []
    return bool(difflib.get_close_matches(path.name, siblings, n=1, cutoff=0.8))


def _not_there(path: Path, text: str, cache: Path) -> ModelError:
    if path.is_dir():
        files = sorted(found.name for found in path.glob("*.gguf"))
        hint = f"; pass one of its files: {', '.join(files[:4])}" if files else ""
        return ModelError(f"{path}: a folder without config.json is not a model{hint}")
    if path.suffix == ".gguf" or path.name != text:
        siblings = [found.name for found in path.parent.iterdir()] if path.parent.is_dir() else []
        if path.is_symlink():
            return ModelError(f"{path} is a link to {path.readlink()}, which is not there")
        hint = nearest(path.name, siblings) if siblings else f"; the folder {path.parent} is not there"
        if siblings and "mean" not in hint and len(siblings) > 8:
            hint = ""
        return ModelError(f"no such file or folder: {path}{hint}")
    known = [*MODELS, *(str(model.name) for model in cached_models(cache))]
    return ModelError(f"unknown model {text!r}, and no such file or folder{meant(text, known)}")


def open_model(path: Path) -> ModelFile:
    """Open a GGUF file or a directory with config.json and safetensors.

    Everything but the values of the weights is checked: types, shapes, missing and surplus tensors, file
    lengths, contradicting metadata. Raises ModelError with the reason.
    """
    if path.is_dir():
        config, tensors = open_directory(path)
        return ModelFile(path, "safetensors", config, tensors, {}, path)
    if path.suffix == ".safetensors":
        raise ModelError(f"{path}: pass the folder of the safetensors and config.json, not the file")
    config, tensors, metadata = open_gguf(path)
    return ModelFile(path, "gguf", config, tensors, metadata, None)
