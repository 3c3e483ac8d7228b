"""From an open model to a backend in memory: the one place that knows which backends there are.

Engine, draft worker, calibration and benchmarks all load through here, so a model runs everywhere as it was measured.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from sonoran.backends.base import Backend
from sonoran.backends.native import LoadProgress, NativeBackend, kv_bytes_per_block
from sonoran.backends.vocabulary import DraftVocabulary, KnownTokens, draft_vocabulary
from sonoran.config import MAX_KV_BLOCKS, DraftQuantize, Quantize
from sonoran.errors import ConfigError, nearest
from sonoran.models.config import ModelConfig
from sonoran.models.registry import draft_precision
from sonoran.models.source import ModelFile

Role = Literal["target", "draft"]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of backend: what makes one (told what ``load_backend`` tells all), and bytes of KV memory per block."""

    make: Callable[..., Backend]
    kv_bytes_per_block: Callable[[ModelConfig, int], int]


_BACKENDS: dict[str, _Kind] = {"cpu": _Kind(NativeBackend, kv_bytes_per_block)}
"""By device; another backend is one more entry."""


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
    ``draft_vocab`` ids (None: the default; 0: all). Raises ModelError, ConfigError.
    """
    check_kv_memory(model.file.config, num_blocks, block_size, device)
    is_draft = role == "draft"
    backend = _kind(device).make(
        model.file,
        num_blocks=num_blocks,
        block_size=block_size,
        threads=threads,
        cores=cores,
        quantize=draft_precision(quantize, model.file.path) if is_draft else quantize,
        quantize_output=is_draft,
        progress=progress,
    )
    if not is_draft:
        return Loaded(backend)
    vocabulary = draft_vocabulary(backend, draft_vocab, model.special_ids)
    return Loaded(KnownTokens(backend, backend.config.vocab_size, model.stand_in), vocabulary)


def check_kv_memory(model: ModelConfig, num_blocks: int, block_size: int, device: str = "cpu") -> None:
    """Raise ConfigError, before anything is allocated, for more KV memory than this machine has memory."""
    per_block = _kind(device).kv_bytes_per_block(model, block_size)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = min(MAX_KV_BLOCKS, memory // per_block)
    if num_blocks > most:
        raise ConfigError(
            f"KV memory of {num_blocks} blocks of {block_size} tokens takes {num_blocks * per_block} bytes, this "
            f"machine has {memory}; at most {most} blocks are possible: lower num_kv_blocks, kv_cache_bytes, "
            "max_model_len or max_num_seqs"
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
    return int(available_memory() // share // _kind(device).kv_bytes_per_block(model, block_size))


def available_memory() -> int:
    """Return the bytes that programs can still take without swapping: caches of files give way."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _kind(device: str) -> _Kind:
    if device not in _BACKENDS:
        raise ConfigError(f"no backend runs on device {device!r}{nearest(device, _BACKENDS)}")
    return _BACKENDS[device]
