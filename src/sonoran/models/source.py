"""What the rest of Sonoran uses: from a name or path to an open model."""

from __future__ import annotations

import mmap
import os
import re
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
from sonoran.models.registry import MODELS
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
    """Turn a registry name, a GGUF file or a model directory into a path.

    A registry name that is not cached is pulled, or refused with DownloadError if ``download`` is false.
    Raises ModelError when there is no such model or file; its text names the nearest known one.
    """
    if not isinstance(spec, (str, os.PathLike)):
        raise ConfigError(f"a model is a name or a path, got {spec!r:.100}")
    text = os.fspath(spec)
    entry = MODELS.get(text.lower()) if isinstance(spec, str) else None
    if entry is not None:
        folder = cache_dir() if cache is None else cache
        if not download and not is_cached(entry, folder):
            raise DownloadError(
                f"{entry.name} is not in the cache; get it with: sonoran models pull {entry.name}"
            )
        return pull(entry, cache=folder, progress=progress)
    with refusing(text):
        return _find(text)


def _find(text: str) -> Path:
    path = Path(text).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            files = sorted(found.name for found in path.glob("*.gguf"))
            hint = f"; pass one of its files: {', '.join(files[:4])}" if files else ""
            raise ModelError(f"{path}: a folder without config.json is not a model{hint}")
        return path
    if path.is_file():
        return path
    if path.suffix == ".gguf" or path.name != text:
        siblings = [found.name for found in path.parent.iterdir()] if path.parent.is_dir() else []
        if path.is_symlink():
            raise ModelError(f"{path} is a link to {path.readlink()}, which is not there")
        hint = nearest(path.name, siblings) if siblings else f"; the folder {path.parent} is not there"
        if siblings and "mean" not in hint and len(siblings) > 8:
            hint = ""
        if not siblings and re.fullmatch(r"[\w.-]+/[\w.-]+", text):
            hint += "; a model of the hub is not fetched by its name: download its files and pass the GGUF or the folder"
        raise ModelError(f"no such file or folder: {path}{hint}")
    raise ModelError(f"unknown model {text!r}, and no such file or folder{nearest(text.lower(), MODELS)}")


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
