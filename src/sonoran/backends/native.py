"""The CPU backend: packed weights, paged fp16 KV memory and kernels in C++."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from sonoran import _native
from sonoran.backends.base import BackendFacts, Rows
from sonoran.backends.packed import (
    LEAST_BYTES,
    PackedKey,
    Spec,
    keep_packed,
    largest_bytes,
    read_packed,
)
from sonoran.backends.placement import default_kernels, loading_threads, place_threads
from sonoran.config import Precision
from sonoran.errors import ConfigError, nearest
from sonoran.models.config import ModelConfig
from sonoran.models.source import ModelFile
from sonoran.models.tensors import CONVERTED_TYPES, KEPT_BITS, TensorInfo, dequantize, kept_rows
from sonoran.types import FloatArray, IntArray

log = logging.getLogger(__name__)

LoadProgress = Callable[[int, int], None]
"""Called with the bytes packed so far and the bytes in all."""

_BITS = KEPT_BITS | {"Q3_0": 3}  # the last is of no file
_LOWERED = {"bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0", "int3": "Q4_0"}
_KEEP_MAPPED = 64 << 20  # bytes of the mapped file that may stay resident while weights are packed
_LOGIT_ROWS = 8  # room for logits that is kept from pass to pass
_GROUP = 32  # inputs that share a scale when weights are quantised on load


class NativeBackend:
    """A decoder on the CPU; implements the Backend protocol.

    Weights keep the precision of the file, exactly; ``quantize`` lowers it once, per group of 32 inputs, for
    tensors that have more bits (the embedding never goes below 8, the output matrix only with
    ``quantize_output``). Activations are rounded to 8-bit integers per row and group in products with quantised
    weights; everything else is fp32, KV fp16.

    Row independence: integer dot products are exact and every floating-point sum has one order, so a row's logits
    are the same bits for any batch, any number of threads and any instruction set.

    The weights of models of ``least_kept`` bytes and more are kept in the cache as they are in memory.
    """

    def __init__(
        self,
        model_file: ModelFile,
        *,
        num_blocks: int,
        block_size: int = 16,
        threads: int | None = None,
        cores: tuple[int, ...] | None = None,
        quantize: Precision | None = None,
        quantize_output: bool = False,
        instruction_set: str | None = None,
        progress: LoadProgress | None = None,
        least_kept: int = LEAST_BYTES,
    ) -> None:
        if block_size < 16 or block_size % 16:
            raise ConfigError(f"block_size must be a multiple of 16, got {block_size}")
        if num_blocks < 1:
            raise ConfigError(f"num_blocks must be at least 1, got {num_blocks}")
        if quantize is not None and quantize not in _LOWERED:
            raise ConfigError(f"unknown quantize {quantize!r}{nearest(quantize, _LOWERED)}")
        count, pinned = place_threads(threads, cores)
        self._config = model_file.config
        self._block_size, self._num_blocks = block_size, num_blocks
        self._buffer: FloatArray | None = None
        matrices = [t for t in model_file.tensors.values() if len(t.shape) == 2]
        specs = [
            (t.name, packed_format(t, quantize, quantize_output), t.shape[0], t.shape[1]) for t in matrices
        ]
        _say_what_changes(model_file, matrices)
        _say_what_stays(model_file, matrices, quantize)
        shape = _shape(model_file.config, block_size, num_blocks)
        kernels = instruction_set or default_kernels()
        decoder = _native.Decoder(shape, specs, count, pinned, kernels, loading_threads(pinned))
        total = sum(t.nbytes for t in matrices)
        key = _packed_key(model_file, specs, kernels) if total >= least_kept else None
        if progress is not None:
            progress(0, total)
        if key is None or not read_packed(decoder, key):
            _pack(decoder, model_file, matrices, progress)
            if key is not None:
                keep_packed(decoder, key)
        for tensor in model_file.tensors.values():
            if len(tensor.shape) == 1:
                decoder.load_vector(tensor.name, dequantize(tensor))
        if progress is not None:
            progress(total, total)
        model_file.release()
        decoder.finish()
        self._decoder: _native.Decoder | None = decoder

    @property
    def config(self) -> ModelConfig:
        """Shape of the decoder."""
        return self._config

    @property
    def block_size(self) -> int:
        """KV slots per block."""
        return self._block_size

    @property
    def num_blocks(self) -> int:
        """Blocks of KV memory."""
        return self._num_blocks

    @property
    def threads(self) -> int:
        """Threads of a forward pass, the calling one included."""
        return self._native().threads

    @property
    def instruction_set(self) -> str:
        """Kernels in use, by a name of ``sonoran._native.instruction_sets()``."""
        return self._native().instruction_set

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that one forward pass reads."""
        return self._native().read_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices in memory."""
        return self._native().weight_bytes

    @property
    def facts(self) -> BackendFacts:
        """What it runs on and holds."""
        kv_bytes = self._num_blocks * kv_bytes_per_block(self._config, self._block_size)
        return BackendFacts(
            "cpu", self.instruction_set, self.threads, self.read_bytes, self.weight_bytes, kv_bytes
        )

    def place(self, cores: tuple[int, ...]) -> None:
        """Run passes on these cores from now on, one thread each; weights and KV memory stay where they are.

        Raises ConfigError for cores that this process may not use.
        """
        count, pinned = place_threads(None, cores)
        self._native().place(count, list(pinned))

    def restrict_output(self, token_ids: Sequence[int] | IntArray) -> None:
        """Compute the logits of these tokens only (in blocks of 16 ids); all others become minus infinity."""
        ids = np.asarray(token_ids, np.int64)
        if ids.size == 0 or ids.min() < 0 or ids.max() >= self._config.vocab_size:
            raise ConfigError(f"token ids must lie in 0..{self._config.vocab_size - 1} and not be empty")
        self._native().restrict_output(np.unique(ids // 16).tolist())

    def forward(self, rows: Rows) -> FloatArray:
        """Run the rows; see Backend.forward."""
        decoder = self._native()
        logits = self._room(int(np.count_nonzero(rows.wants_logits)))
        if len(rows):
            decoder.forward(
                rows.tokens, rows.positions, rows.slots, rows.sequences, rows.trunk_lengths,
                rows.wants_logits, rows.block_tables, rows.extra_offsets, rows.extra_slots, logits,
            )  # fmt: skip
        return logits

    def _room(self, rows: int) -> FloatArray:
        """Return memory for the logits: that of the last pass again, unless somebody still looks at it.

        Fresh memory costs a page fault for every 4 KiB, a tenth of a draft's pass.
        """
        # Two references are this attribute and the argument of getrefcount; views of the buffer add to them.
        if self._buffer is None or len(self._buffer) < rows or sys.getrefcount(self._buffer) > 2:
            self._buffer = np.empty((max(rows, _LOGIT_ROWS), self._config.vocab_size), np.float32)
        view: FloatArray = self._buffer[:rows]
        return view

    def copy_block(self, source: int, destination: int) -> None:
        """Copy the keys and values of one block."""
        for block in (source, destination):
            if not 0 <= block < self._num_blocks:
                raise ConfigError(f"block {block} is outside the KV memory of {self._num_blocks} blocks")
        self._native().copy_block(source, destination)

    def close(self) -> None:
        """Free weights, KV memory and threads; calling twice is harmless."""
        self._decoder = None

    def _native(self) -> _native.Decoder:
        if self._decoder is None:
            raise ConfigError("the backend is closed")
        return self._decoder


def _packed_key(model_file: ModelFile, specs: list[Spec], kernels: str) -> PackedKey | None:
    """Return the key of the weights in the cache; None where they are not kept."""
    if not largest_bytes():
        return None
    try:
        return PackedKey.of(model_file, specs, kernels)
    except OSError:
        return None


def _pack(
    decoder: _native.Decoder,
    model_file: ModelFile,
    matrices: list[TensorInfo],
    progress: LoadProgress | None,
) -> None:
    """Convert all matrices from the model file."""
    total = sum(tensor.nbytes for tensor in matrices)
    done = kept = 0
    for tensor in matrices:
        decoder.load_matrix(tensor.name, *kept_rows(tensor))
        done += tensor.nbytes
        kept += tensor.nbytes
        if kept > _KEEP_MAPPED:
            model_file.release()  # pages of the file that were read would count as ours
            kept = 0
        if progress is not None:
            progress(done, total)


def packed_format(tensor: TensorInfo, quantize: Precision | None, quantize_output: bool = False) -> str:
    """Format in which a matrix is kept: that of the file, or fewer bits if asked for and possible."""
    inputs = tensor.shape[1]
    kept = CONVERTED_TYPES.get(tensor.dtype, tensor.dtype)
    wanted = kept if quantize is None else _LOWERED[quantize]
    last = tensor.name.rpartition(".")[2]
    if last == "router":
        return kept  # a few bytes that decide which experts are read
    if quantize == "int3" and last.removeprefix("shared_") in ("gate", "up", "down"):
        wanted = "Q3_0"
    sensitive = tensor.name == "embed" or (tensor.name == "output" and not quantize_output)
    if wanted == "Q4_0" and sensitive:
        wanted = "Q8_0"
    fits = wanted == "BF16" or inputs % _GROUP == 0
    return wanted if fits and _BITS[wanted] < _BITS[kept] else kept


def _say_what_changes(model_file: ModelFile, matrices: list[TensorInfo]) -> None:
    """Log, once for a model, which types are not kept as they are and what that costs."""
    counts = Counter(t.dtype for t in matrices if t.dtype in CONVERTED_TYPES)
    rounded = [kind for kind in counts if CONVERTED_TYPES[kind] == "Q8_0"]
    if rounded:
        log.warning(
            "%s: matrices of %s become Q8_0: values are rounded by up to 1/254 of the largest of 32, and memory and "
            "time per pass are those of 8.5 bits per weight. Q2_K, Q3_K and IQ4_XS files are kept exactly",
            model_file.path, " and ".join(f"{kind} ({counts[kind]})" for kind in rounded),
        )  # fmt: skip


def _say_what_stays(model_file: ModelFile, matrices: list[TensorInfo], quantize: Precision | None) -> None:
    """Log which matrices keep their precision although fewer bits were asked for."""
    if quantize in (None, "bf16"):
        return
    bits = _BITS[_LOWERED[quantize]]
    left = [
        t for t in matrices if t.shape[1] % _GROUP and _BITS[CONVERTED_TYPES.get(t.dtype, t.dtype)] > bits
    ]
    if left:
        widths = ", ".join(map(str, sorted({t.shape[1] for t in left})))
        log.warning(
            "%s: %d of %d matrices keep their precision under quantize=%s: rows of %s values are no multiple of %d",
            model_file.path, len(left), len(matrices), quantize, widths, _GROUP,
        )  # fmt: skip


def kv_bytes_per_block(config: ModelConfig, block_size: int) -> int:
    """Bytes of keys and values of one block, all layers: fp16, head size padded to a multiple of 16."""
    dims = (config.head_dim + 15) // 16 * 16
    return config.num_layers * 2 * block_size * config.num_kv_heads * dims * 2


_NORMS = {"before": _native.Norms.BEFORE, "around": _native.Norms.AROUND, "behind": _native.Norms.BEHIND}
_ACTIVATIONS = {"silu": _native.Activation.SILU, "gelu_tanh": _native.Activation.GELU_TANH}


def _shape(config: ModelConfig, block_size: int, num_blocks: int) -> _native.DecoderConfig:
    shape = _native.DecoderConfig()
    for name in (
        "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim",
        "norm_epsilon", "rope_interleaved", "embedding_scale", "residual_scale", "logit_scale", "whole_qk_norm",
    ):  # fmt: skip
        setattr(shape, name, getattr(config, name))
    shape.norms, shape.activation = _NORMS[config.norms], _ACTIVATIONS[config.activation]
    shape.attention_scale = config.attention_scale or 0.0
    shape.attention_softcap, shape.logit_softcap = (
        config.attention_softcap or 0.0,
        config.logit_softcap or 0.0,
    )
    shape.rotary_dim = config.rotated
    scaling = config.rope_scaling
    ropes = [
        _native.Rope(
            config.rope_theta,
            scaling.factors if scaling else (),
            scaling.attention_factor if scaling else 1.0,
        )
    ]
    layers = range(config.num_layers)
    if config.window_rope_theta is not None:
        ropes.append(_native.Rope(config.window_rope_theta, (), 1.0))
    shape.ropes = ropes
    shape.layer_ropes = [int(config.has_window_rope(i)) if config.rotates(i) else -1 for i in layers]
    shape.sliding_windows = [window or 0 for window in config.sliding_windows]
    if (experts := config.experts) is not None:
        shape.experts = _native.Experts(
            count=experts.count,
            per_row=experts.per_token,
            intermediate_size=experts.intermediate_size,
            shared_size=experts.shared_size,
            normalised=experts.normalized,
        )
    shape.block_size, shape.num_blocks = block_size, num_blocks
    return shape
