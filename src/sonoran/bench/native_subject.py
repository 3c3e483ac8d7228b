"""Sonoran's own backend as a subject of `sonoran bench forward`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sonoran import _native
from sonoran.backends.base import Rows
from sonoran.backends.load import load_backend
from sonoran.bench.machine import resident_bytes
from sonoran.config import Precision
from sonoran.models.opening import open_with_tokenizer
from sonoran.planning.profile.passes import Clock, one_sequence
from sonoran.types import IntArray

BLOCK_SIZE = 16
PREFILL_ROWS = 256  # rows of one pass over a prompt, as the engine has it by default
READ_LOOP_BYTES = 256 << 20  # far more than any last-level cache holds for one core
READ_LOOP_PASSES = 3


class NativeSubject:
    """One model in memory, on given cores, with one sequence of `context` tokens.

    Raises ModelError, ConfigError.
    """

    def __init__(
        self,
        path: Path,
        context: IntArray,
        *,
        max_rows: int,
        threads: int | None = None,
        cores: tuple[int, ...] | None = None,
        quantize: Precision | None = None,
        loading: Callable[[int, int], None] | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._clock, self._context = clock, np.asarray(context, np.int32)
        length = len(self._context) + max_rows
        before, start = resident_bytes(), clock()
        model = open_with_tokenizer(path)
        self._file_bytes = model.file.nbytes
        self._backend = load_backend(
            "target",
            model,
            num_blocks=-(-length // BLOCK_SIZE),
            block_size=BLOCK_SIZE,
            threads=threads,
            cores=cores,
            quantize=quantize,
            progress=loading,
        ).backend
        self.load_seconds = clock() - start
        self.resident_growth = resident_bytes() - before
        self.cores = cores
        self._table = np.arange(self._backend.num_blocks, dtype=np.int32)[None, :]
        ids = np.random.default_rng(1).integers(0, self._backend.config.vocab_size, max_rows)
        self._tokens = ids.astype(np.int32)

    @property
    def name(self) -> str:
        """What it is, short."""
        return f"sonoran, {self.threads} thread{'s' if self.threads > 1 else ''}"

    @property
    def threads(self) -> int:
        """Threads of a pass."""
        return self._backend.facts.threads

    def forward_seconds(self, rows: int) -> float:
        """Run one pass of `rows` rows behind the context, with logits for all; return its seconds."""
        start = len(self._context)
        return self._timed(self._rows(self._tokens[:rows], start, np.ones(rows, np.int32)))

    def prefill_seconds(self) -> float:
        """Read the context in passes of at most PREFILL_ROWS rows, logits for the last row only."""
        seconds, length = 0.0, len(self._context)
        for start in range(0, length, PREFILL_ROWS):
            ids = self._context[start : start + PREFILL_ROWS]
            wants = np.zeros(len(ids), np.int32)
            wants[-1] = start + len(ids) == length
            seconds += self._timed(self._rows(ids, start, wants))
        return seconds

    def read_loop_seconds(self) -> float:
        """Return the seconds that a plain read loop on the same cores takes for READ_LOOP_BYTES."""
        rate = _native.measure_read_bandwidth(
            READ_LOOP_BYTES, self.threads, list(self.cores or ()), READ_LOOP_PASSES
        )
        return READ_LOOP_BYTES / (float(rate) * 1e9)

    def bytes_read(self, rows: int) -> int:
        """Bytes that a pass reads once: the weights, and keys and values of every position it sees."""
        blocks, facts = -(-(len(self._context) + rows) // BLOCK_SIZE), self._backend.facts
        return facts.read_bytes + blocks * facts.kv_bytes // self._backend.num_blocks

    def describe(self) -> dict[str, Any]:
        """Return engine, kernels, placement and what loading took."""
        facts = self._backend.facts
        return {
            "engine": "sonoran",
            "instruction_set": facts.kernels,
            "threads": self.threads,
            "cores": list(self.cores) if self.cores else None,
            "load": {
                "seconds": self.load_seconds,
                "file_bytes": self._file_bytes,
                "weight_bytes": facts.weight_bytes,
                "kv_bytes": facts.kv_bytes,
                "resident_growth_bytes": self.resident_growth,
                "resident_without_kv_per_file_byte": (self.resident_growth - facts.kv_bytes)
                / self._file_bytes,
            },
        }

    def close(self) -> None:
        """Free the model."""
        self._backend.close()

    def _timed(self, rows: Rows) -> float:
        start = self._clock()
        self._backend.forward(rows)
        return self._clock() - start

    def _rows(self, ids: IntArray, start: int, wants: IntArray) -> Rows:
        return one_sequence(ids, start, self._table, BLOCK_SIZE, wants)
