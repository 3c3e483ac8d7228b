"""Rows made ready for a device: checked, cut into tiles of a fixed number of rows, padded.

A padding row reads and writes a spare slot behind the KV memory. Nothing of it is ever looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sonoran.backends.base import Rows
from sonoran.errors import ConfigError
from sonoran.types import FloatArray, IntArray

TILE = 16
"""Rows of every product and every sum: one shape, so that a row's bits do not depend on how many rows there are."""

CHUNK = 128
"""Keys that attention takes at a time, counted from the first position of the text."""

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Whole tiles of rows, padding included. ``wanted`` has the rows whose logits are wanted, padded with 0."""

    tokens: Index  # [rows]
    slots: Index  # [rows] slot to write
    visible: Index  # [rows, chunks * CHUNK] slots to read, the own one last; then the spare slot
    lengths: IntArray  # [rows] slots that a row reads
    trunks: IntArray  # [rows] how many of these belong to the trunk
    positions: IntArray  # [rows]
    angles: tuple[FloatArray, ...]  # for each kind of RoPE [2, rows, pairs]: cosines and sines
    wanted: Index  # [whole tiles]
    num_wanted: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What rows may name: ids of the vocabulary and slots of the KV memory, behind which lies the spare slot."""

    vocab_size: int
    num_blocks: int
    block_size: int

    @property
    def spare(self) -> int:
        """The slot of padding rows."""
        return self.num_blocks * self.block_size


def pack_rows(rows: Rows, memory: Memory, frequencies: tuple[tuple[FloatArray, float], ...]) -> PackedRows:
    """Check and pad rows. ``frequencies``: of each kind of RoPE, angles per position of its pairs, and a factor.

    Raises ConfigError, with the row and the value, for rows that break the contract of ``Rows``.
    """
    seen = _seen_slots(rows, memory)
    n = len(rows)
    size = -(-n // TILE) * TILE
    longest = max((len(slots) for slots in seen), default=1)
    visible = np.full((size, -(-longest // CHUNK) * CHUNK), memory.spare, np.int64)
    for row, slots in zip(visible, seen, strict=False):
        row[: len(slots)] = slots
    lengths = np.ones(size, np.int32)
    lengths[:n] = [len(slots) for slots in seen]
    positions = _padded(rows.positions, size, 0)
    wanted = np.flatnonzero(rows.wants_logits)
    angles = []
    for per_position, factor in frequencies:
        turned = positions[:, None] * per_position.astype(np.float64)
        angles.append((np.stack([np.cos(turned), np.sin(turned)]) * factor).astype(np.float32))
    return PackedRows(
        tokens=_padded(rows.tokens, size, 0).astype(np.int64),
        slots=_padded(rows.slots, size, memory.spare).astype(np.int64),
        visible=visible,
        lengths=lengths,
        trunks=_padded(rows.trunk_lengths, size, 1),
        positions=positions,
        angles=tuple(angles),
        wanted=_padded(wanted, -(-len(wanted) // TILE) * TILE, 0).astype(np.int64),
        num_wanted=len(wanted),
    )


def _padded(values: NDArray[np.integer], size: int, value: int) -> IntArray:
    out = np.full(size, value, np.int32)
    out[: len(values)] = values
    return out


def _seen_slots(rows: Rows, memory: Memory) -> list[IntArray]:
    """Return the slots that each row reads. Raises ConfigError as the native backend does (native/model/rows.cpp)."""
    n = len(rows)
    fields = (rows.positions, rows.slots, rows.sequences, rows.trunk_lengths, rows.wants_logits)
    if any(field.shape != (n,) for field in fields) or rows.extra_offsets.shape != (n + 1,):
        raise ConfigError("all fields of the rows must have the same length")
    offsets = rows.extra_offsets
    if n and (offsets[0] != 0 or offsets[-1] != len(rows.extra_slots)):
        raise ConfigError("extra_offsets do not cover extra_slots")
    size, spare = memory.block_size, memory.spare
    trunks: dict[
        int, tuple[int, IntArray]
    ] = {}  # by sequence: blocks that were checked, and the slots of these
    seen = []
    for i in range(n):
        token, slot, sequence = int(rows.tokens[i]), int(rows.slots[i]), int(rows.sequences[i])
        trunk = int(rows.trunk_lengths[i])
        if not 0 <= token < memory.vocab_size:
            raise ConfigError(f"row {i}: token {token} is outside the vocabulary of {memory.vocab_size}")
        _check_slot(i, "slot", slot, spare)
        if rows.positions[i] < 0:
            raise ConfigError(f"row {i}: negative position")
        if not 0 <= sequence < len(rows.block_tables):
            raise ConfigError(f"row {i}: unknown sequence")
        first, last = int(offsets[i]), int(offsets[i + 1])
        if not 0 <= first <= last <= len(rows.extra_slots):
            raise ConfigError(f"row {i}: extra slots out of order")
        extra = rows.extra_slots[first:last]
        for other in extra:
            _check_slot(i, "extra slot", int(other), spare)
        if not 0 <= trunk <= rows.block_tables.shape[1] * size:
            raise ConfigError(f"row {i}: trunk of {trunk} exceeds the block table")
        blocks = -(-trunk // size)
        if sequence not in trunks or trunks[sequence][0] < blocks:
            table = rows.block_tables[sequence, :blocks]
            if blocks and not (table.min() >= 0 and table.max() < memory.num_blocks):
                raise ConfigError(f"row {i}: block table has no block for part of the trunk")
            every: IntArray = (table[:, None] * size + np.arange(size)).reshape(-1).astype(np.int32)
            trunks[sequence] = blocks, every
        slots = np.concatenate([trunks[sequence][1][:trunk], extra])
        if not len(slots):
            raise ConfigError(f"row {i}: sees nothing, not even itself")
        if slots[-1] != slot:
            raise ConfigError(f"row {i}: the last slot it sees is {int(slots[-1])}, not its own {slot}")
        seen.append(slots)
    written, times = np.unique(rows.slots, return_counts=True)
    if np.any(times > 1):
        raise ConfigError(f"two rows write slot {int(written[times > 1][0])}")
    return seen


def _check_slot(row: int, which: str, slot: int, slots: int) -> None:
    if not 0 <= slot < slots:
        raise ConfigError(f"row {row}: {which} {slot} is outside the KV memory")
