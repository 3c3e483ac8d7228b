"""The PyTorch backend: weights and paged KV memory on one device, behind the protocol ``Rows -> logits``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np

from sonoran.backends.base import BackendFacts, Rows
from sonoran.backends.torch.decoder import Decoder, DeviceRows
from sonoran.backends.torch.devices import import_torch, torch_device, weight_dtype
from sonoran.backends.torch.graphs import Graphs
from sonoran.backends.torch.rows import TILE, Memory, PackedRows, pack_rows
from sonoran.backends.torch.weights import load_weights
from sonoran.errors import ConfigError, NumericsError
from sonoran.models.config import ModelConfig
from sonoran.models.source import ModelFile
from sonoran.types import FloatArray, IntArray

log = logging.getLogger(__name__)


class TorchBackend:
    """A decoder on a device of PyTorch; implements the Backend protocol.

    Weights are bf16 or fp32, dequantised when they are loaded; keys and values are fp16, all sums fp32. ``quantize``
    is "bf16", "file" (fp32, every value of the file) or None: fp32 on a CPU, bf16 elsewhere. ``keep``: of each row
    only so many of the largest logits leave the device, the others are minus infinity.

    Row independence: all products have 16 rows, see ``decoder``. Whether a row's bits depend on its neighbours in a
    product is tried when the model is loaded, on the device and shapes at hand, and a warning says if they do.
    """

    def __init__(
        self,
        model_file: ModelFile,
        *,
        num_blocks: int,
        block_size: int = 16,
        device: str = "torch:cpu",
        threads: int | None = None,
        quantize: str | None = None,
        keep: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        threads = 1 if threads is None else threads
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size), ("threads", threads)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        self._device = torch_device(device)
        self._config, self._name = model_file.config, device
        self._threads = threads if self._device.type == "cpu" else 1
        self._memory = Memory(model_file.config.vocab_size, num_blocks, block_size)
        self._frequencies = rope_frequencies(self._config)
        dtype = weight_dtype(self._device, quantize)
        self._keep = keep if keep is not None and keep < self._config.vocab_size else None
        self._ids: Any = None  # of the tokens whose logits are computed; None: all
        with self._running() as torch:
            weights = load_weights(model_file, self._device, dtype, progress)
            self._output = weights["embed" if self._config.tied_embeddings else "output"]
            self._decoder: Decoder | None = Decoder(
                self._config, weights, self._memory.spare + 1, self._device
            )
            self._graphs = Graphs(self._decoder, self._memory.spare) if self._device.type == "cuda" else None
            self._weight_bytes = sum(weight.nbytes for weight in weights.values())
            self._kernels = f"PyTorch {torch.__version__}, {str(dtype).removeprefix('torch.')}"
            self.exact = self._rows_are_independent(weights)
        if not self.exact:
            log.warning(
                "on %s a row's logits depend on the rows beside it, even in products of one shape: texts of AR, SD and "
                "SSD may differ where two tokens are nearly as likely",
                device,
            )
        if progress is not None:
            progress(model_file.nbytes, model_file.nbytes)

    @property
    def config(self) -> ModelConfig:
        """Shape of the decoder."""
        return self._config

    @property
    def block_size(self) -> int:
        """KV slots per block."""
        return self._memory.block_size

    @property
    def num_blocks(self) -> int:
        """Blocks of KV memory."""
        return self._memory.num_blocks

    @property
    def facts(self) -> BackendFacts:
        """What it runs on and holds; a pass reads all weights for each 16 rows."""
        kv_bytes = self._memory.num_blocks * kv_bytes_per_block(self._config, self._memory.block_size)
        weights = self._open().weights
        embed = 0 if self._config.tied_embeddings else weights["embed"].nbytes
        read = self._weight_bytes - embed - self._output.nbytes + self._open().output.nbytes
        return BackendFacts(self._name, self._kernels, self._threads, read, self._weight_bytes, kv_bytes)

    def forward(self, rows: Rows) -> FloatArray:
        """Run the rows; see Backend.forward."""
        decoder = self._open()
        packed = pack_rows(rows, self._memory, self._frequencies)
        if not len(rows):
            return np.zeros((0, self._config.vocab_size), np.float32)
        with self._running() as torch:
            run = decoder.run if self._graphs is None else self._graphs.run
            on_device = self._carry(packed)
            if not packed.num_wanted:
                decoder.write(on_device)
                return np.zeros((0, self._config.vocab_size), np.float32)
            logits = run(on_device)[: packed.num_wanted]
            logits = logits[:, : self._config.vocab_size if self._ids is None else len(self._ids)]
            finite = torch.isfinite(logits).all(-1).cpu().numpy()
            if not finite.all():
                row = int(packed.wanted[int(np.argmin(finite))])
                raise NumericsError(
                    f"row {row} (position {int(rows.positions[row])}) has logits that are not finite; its weights are "
                    "likely corrupt"
                )
            return self._fetch(logits)

    def restrict_output(self, token_ids: IntArray) -> None:
        """Compute the logits of these tokens only (in blocks of 16 ids); all others become minus infinity."""
        ids = np.asarray(token_ids, np.int64)
        if ids.size == 0 or ids.min() < 0 or ids.max() >= self._config.vocab_size:
            raise ConfigError(f"token ids must lie in 0..{self._config.vocab_size - 1} and not be empty")
        units = np.unique(ids // TILE)[:, None] * TILE + np.arange(TILE)
        chosen = units[units < self._config.vocab_size]
        with self._running() as torch:
            self._ids = torch.from_numpy(chosen).to(self._device)
            padding = torch.zeros(-len(chosen) % 32, dtype=torch.int64, device=self._device)
            self._open().output = self._output.index_select(0, torch.cat([self._ids, padding]))
        if self._graphs is not None:
            self._graphs.forget()

    def copy_block(self, source: int, destination: int) -> None:
        """Copy the keys and values of one block."""
        size = self._memory.block_size
        for block in (source, destination):
            if not 0 <= block < self._memory.num_blocks:
                raise ConfigError(
                    f"block {block} is outside the KV memory of {self._memory.num_blocks} blocks"
                )
        decoder = self._open()
        with self._running():
            for memory in (decoder.keys, decoder.values):
                memory[:, destination * size : (destination + 1) * size] = memory[
                    :, source * size : (source + 1) * size
                ]

    def close(self) -> None:
        """Free weights and KV memory; calling twice is harmless."""
        self._decoder = self._graphs = self._output = self._ids = None

    def _open(self) -> Decoder:
        if self._decoder is None:
            raise ConfigError("the backend is closed")
        return self._decoder

    @contextmanager
    def _running(self) -> Iterator[Any]:
        """No gradients, the device, and on a CPU the number of threads, which others may have changed."""
        torch = import_torch()
        before = torch.get_num_threads()
        if before != self._threads:
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                if self._device.type != "cuda":
                    yield torch
                else:
                    with torch.cuda.device(self._device):
                        yield torch
        finally:
            if before != self._threads:
                torch.set_num_threads(before)

    def _carry(self, packed: PackedRows) -> DeviceRows:
        torch = import_torch()

        def carried(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(carried(one) for one in value)
            return torch.from_numpy(value).to(self._device)

        return DeviceRows(
            **{field.name: carried(getattr(packed, field.name)) for field in fields(DeviceRows)}
        )

    def _fetch(self, logits: Any) -> FloatArray:
        """Return logits ``[rows, vocab_size]``; those that were not computed, or not kept, are minus infinity."""
        torch = import_torch()
        if self._ids is None and self._keep is None:
            whole: FloatArray = logits.cpu().numpy()
            return whole
        if self._keep is not None and self._keep < logits.shape[1]:
            logits, places = logits.topk(self._keep, dim=-1, sorted=False)
        else:
            places = torch.arange(logits.shape[1], device=self._device).expand(logits.shape)
        ids = places if self._ids is None else self._ids[places]
        out = np.full((len(logits), self._config.vocab_size), -np.inf, np.float32)
        np.put_along_axis(out, ids.cpu().numpy(), logits.cpu().numpy(), axis=1)
        return out

    def _rows_are_independent(self, weights: dict[str, Any]) -> bool:
        """Try a product of each shape: rows in other places, and beside others, must give the same bits."""
        torch = import_torch()
        tried: dict[tuple[int, ...], Any] = {w.shape: w for w in weights.values() if w.ndim == 2}
        for weight in tried.values():
            x = torch.linspace(-2.0, 2.0, TILE * weight.shape[1], device=self._device).sin()
            x = x.reshape(TILE, -1).to(weight.dtype)
            together = torch.nn.functional.linear(x, weight)
            turned = torch.nn.functional.linear(x.roll(5, 0), weight).roll(-5, 0)
            alone = torch.zeros_like(x)
            alone[3] = x[3]
            single = torch.nn.functional.linear(alone, weight)
            if not torch.equal(together, turned) or not torch.equal(together[3], single[3]):
                return False
        return True


def rope_frequencies(config: ModelConfig) -> tuple[tuple[FloatArray, float], ...]:
    """Return angles per position of each rotated pair, and the factor of rotated values, of each kind of RoPE.

    The second kind is that of layers with a window, where these have one of their own.
    """
    pairs = np.arange(0, config.rotated, 2, dtype=np.float64) / config.rotated
    scaling = config.rope_scaling
    factors = np.array(scaling.factors) if scaling else np.ones(len(pairs))
    kinds = [
        (
            (config.rope_theta**-pairs / factors).astype(np.float32),
            scaling.attention_factor if scaling else 1.0,
        )
    ]
    if config.window_rope_theta is not None:
        kinds.append(((config.window_rope_theta**-pairs).astype(np.float32), 1.0))
    return tuple(kinds)


def kv_bytes_per_block(config: ModelConfig, block_size: int) -> int:
    """Bytes of keys and values of one block, all layers, in fp16."""
    return config.num_layers * 2 * block_size * config.num_kv_heads * config.head_dim * 2
