"""From an open model to a backend in memory: the one place that knows which backends there are.

Engine, draft worker, calibration and benchmarks all load through here, so a model runs everywhere as it was measured.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from sonoran.backends.base import Backend
from sonoran.backends.native import LoadProgress, NativeBackend, kv_bytes_per_block
from sonoran.backends.vocabulary import DraftVocabulary, KnownTokens, draft_vocabulary
from sonoran.config import MAX_KV_BLOCKS, DraftQuantize, Quantize
from sonoran.errors import ConfigError, nearest
from sonoran.models.config import ModelConfig
from sonoran.models.registry import draft_precision
from sonoran.models.source import ModelFile

Role = Literal["target", "draft"]

KEPT_LOGITS = 256
"""Largest logits of a row that leave a GPU where the model is a draft: what a draft proposes is among them."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of backend: what makes one (told what ``load_backend`` tells all), bytes of KV memory per block, and the
    bytes of a device's own memory that are free and in all, None where it is the machine's."""

    make: Callable[..., Backend]
    kv_bytes_per_block: Callable[[ModelConfig, int], int]
    memory: Callable[[str], tuple[int, int] | None] = lambda device: None


def _make_native(file: ModelFile, *, role: Role, device: str, **options: Any) -> Backend:
    quantize, is_draft = options.pop("quantize"), role == "draft"
    precision = draft_precision(quantize, file.path) if is_draft else None if quantize == "file" else quantize
    return NativeBackend(file, quantize=precision, quantize_output=is_draft, **options)


def _make_torch(
    file: ModelFile, *, role: Role, device: str, cores: tuple[int, ...] | None, **options: Any
) -> Backend:
    """``cores`` are those of the process, if of anything: PyTorch has the threads of all its models."""
    from sonoran.backends.torch.backend import TorchBackend

    keep = KEPT_LOGITS if role == "draft" and device != "torch:cpu" else None
    return TorchBackend(file, device=device, keep=keep, **options)


def _torch_kv_bytes(config: ModelConfig, block_size: int) -> int:
    from sonoran.backends.torch.backend import kv_bytes_per_block

    return kv_bytes_per_block(config, block_size)


def _torch_memory(device: str) -> tuple[int, int] | None:
    from sonoran.backends.torch.devices import device_memory

    return device_memory(device)


_NATIVE = _Kind(_make_native, kv_bytes_per_block)
_TORCH = _Kind(_make_torch, _torch_kv_bytes, _torch_memory)
_BACKENDS = {"cpu": _NATIVE, "cuda": _TORCH, "mps": _TORCH, "torch:cpu": _TORCH}
"""By device, its number left out; another backend is one more entry."""


class Loadable(Protocol):
    """An open model: its file, and of its vocabulary what a draft always proposes."""

    @property
    def file(self) -> ModelFile: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    @property
    def stand_in(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory; of a draft also what it proposes from, None for its whole vocabulary."""

    backend: Backend
    vocabulary: DraftVocabulary | None = None


def load_backend(
    role: Role,
    model: Loadable,
    *,
    num_blocks: int,
    block_size: int = 16,
    threads: int | None = None,
    cores: tuple[int, ...] | None = None,
    quantize: Quantize | DraftQuantize | None = None,
    draft_vocab: int | None = None,
    device: str = "cpu",
    progress: LoadProgress | None = None,
) -> Loaded:
    """Load a model for a role, with KV memory of ``num_blocks`` blocks of ``block_size`` tokens.

    A target keeps the precision of its file unless ``quantize`` lowers it. A draft's errors cost acceptance, never a
    text: it has 4 bits or fewer unless ``quantize`` says otherwise, its output matrix too, and proposes from
    ``draft_vocab`` ids (None: the default; 0: all). Through PyTorch both have bf16 or fp32, and a draft proposes from
    all ids by default. Raises ModelError, ConfigError.
    """
    check_kv_memory(model.file.config, num_blocks, block_size, device)
    kind = _kind(device)
    backend = kind.make(
        model.file,
        role=role,
        device=device,
        num_blocks=num_blocks,
        block_size=block_size,
        threads=threads,
        cores=cores,
        quantize=quantize,
        progress=progress,
    )
    if role == "target":
        return Loaded(backend)
    if draft_vocab is None and kind is _TORCH:
        draft_vocab = 0  # rows of the output matrix cost a GPU next to nothing
    vocabulary = draft_vocabulary(backend, draft_vocab, model.special_ids)
    return Loaded(KnownTokens(backend, backend.config.vocab_size, model.stand_in), vocabulary)


def check_kv_memory(model: ModelConfig, num_blocks: int, block_size: int, device: str = "cpu") -> None:
    """Raise ConfigError, before anything is allocated, for more KV memory than this machine, or GPU, has memory."""
    kind = _kind(device)
    per_block, own = kind.kv_bytes_per_block(model, block_size), kind.memory(device)
    memory = own[1] if own else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = min(MAX_KV_BLOCKS, memory // per_block)
    if num_blocks > most:
        raise ConfigError(
            f"KV memory of {num_blocks} blocks of {block_size} tokens takes {num_blocks * per_block} bytes, "
            f"{device if own else 'this machine'} has {memory}; at most {most} blocks are possible: lower "
            "num_kv_blocks, kv_cache_bytes, max_model_len or max_num_seqs"
        )


def kv_blocks_in(memory_bytes: int, model: ModelConfig, block_size: int, device: str = "cpu") -> int:
    """Return how many KV blocks fit. Raises ConfigError when not even one does."""
    per_block = _kind(device).kv_bytes_per_block(model, block_size)
    if memory_bytes < per_block:
        raise ConfigError(
            f"kv_cache_bytes is {memory_bytes}, but one block of {block_size} tokens takes {per_block}"
        )
    return memory_bytes // per_block


def free_kv_blocks(model: ModelConfig, block_size: int, share: int, device: str = "cpu") -> int:
    """Return how many KV blocks fit into one part in ``share`` of the memory that is free now."""
    own = _kind(device).memory(device)
    free = own[0] if own else available_memory()
    return int(free // share // _kind(device).kv_bytes_per_block(model, block_size))


def available_memory() -> int:
    """Return the bytes that programs can still take without swapping: caches of files give way."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _kind(device: str) -> _Kind:
    name = "cuda" if device.startswith("cuda:") else device
    if name not in _BACKENDS:
        raise ConfigError(f"no backend runs on device {device!r}{nearest(device, _BACKENDS)}")
    return _BACKENDS[name]
