"""The backend protocol: one operation serves prefill, decoding, verification and tree decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from sonoran.models.config import ModelConfig
from sonoran.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Rows:
    """One forward pass, as a structure of arrays over n rows.

    A row reads the first ``trunk_lengths[i]`` positions of sequence ``sequences[i]`` through its block table,
    then the explicit slots ``extra_slots[extra_offsets[i]:extra_offsets[i + 1]]`` in that order. What a row reads
    includes its own slot, which is written first: a trunk row at position p has trunk length p + 1; a branch row
    lists its branch's slots, its own last. Keys and values of all rows are written before any row reads.
    """

    tokens: IntArray  # [n] token ids
    positions: IntArray  # [n] logical positions (RoPE); independent of the slot
    slots: IntArray  # [n] KV slot to write: block * block_size + offset
    sequences: IntArray  # [n] row index into block_tables
    trunk_lengths: IntArray  # [n] number of trunk positions the row sees
    wants_logits: IntArray  # [n] 1 where logits are wanted
    block_tables: IntArray  # [num_sequences, max_blocks], unused entries -1
    extra_offsets: IntArray  # [n + 1]
    extra_slots: IntArray  # [extra_offsets[n]]

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    @staticmethod
    def trunk(
        tokens: IntArray,
        positions: IntArray,
        sequences: IntArray,
        block_tables: IntArray,
        block_size: int,
        wants_logits: IntArray,
    ) -> Rows:
        """Build trunk rows (no branches): the slot follows from the position and the sequence's block table."""
        positions = np.asarray(positions, np.int32)
        sequences = np.asarray(sequences, np.int32)
        tables = np.asarray(block_tables, np.int32)
        blocks = tables[sequences, positions // block_size]
        return Rows(
            tokens=np.asarray(tokens, np.int32),
            positions=positions,
            slots=(blocks * block_size + positions % block_size).astype(np.int32),
            sequences=sequences,
            trunk_lengths=(positions + 1).astype(np.int32),
            wants_logits=np.asarray(wants_logits, np.int32),
            block_tables=tables,
            extra_offsets=np.zeros(len(positions) + 1, np.int32),
            extra_slots=np.zeros(0, np.int32),
        )


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """What a backend runs on and holds, for reports. ``read_bytes`` are those of weights that one pass reads."""

    device: str
    kernels: str
    threads: int
    read_bytes: int
    weight_bytes: int
    kv_bytes: int


class Backend(Protocol):
    """A model with its paged KV memory, ready to run forward passes.

    A row's logits are bit-identical whatever else is in the batch and however many threads run it.
    """

    @property
    def config(self) -> ModelConfig: ...

    @property
    def block_size(self) -> int:
        """KV slots per block."""
        ...

    @property
    def num_blocks(self) -> int:
        """Blocks of KV memory."""
        ...

    @property
    def facts(self) -> BackendFacts:
        """What it runs on and holds."""
        ...

    def forward(self, rows: Rows) -> FloatArray:
        """Run the rows; return logits ``[number of rows that want them, vocab_size]`` in row order.

        Raises NumericsError when a logit is not finite, ConfigError when a row is malformed.
        """
        ...

    def restrict_output(self, token_ids: IntArray) -> None:
        """Hear that only these logits are wanted from now on; any others may be minus infinity."""
        ...

    def copy_block(self, source: int, destination: int) -> None:
        """Copy the keys and values of one block (copy-on-write)."""
        ...

    def close(self) -> None:
        """Free weights, KV memory and threads; calling twice is harmless."""
        ...


@runtime_checkable
class Movable(Protocol):
    """A backend that can change its cores while it holds a model."""

    def place(self, cores: tuple[int, ...]) -> None:
        """Run passes on these cores from now on, one thread each. Raises ConfigError."""
        ...
