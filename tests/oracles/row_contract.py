"""The contract of ``Rows``, checked row by row in Python; native backends check it in native/model/rows.cpp."""

from __future__ import annotations

import numpy as np

from sonoran.backends.base import Rows
from sonoran.errors import ConfigError
from sonoran.types import IntArray


def check_rows(rows: Rows, vocab_size: int, num_blocks: int, block_size: int) -> None:
    """Raise ConfigError, naming the row and the value, unless every row keeps the contract of ``Rows``.

    Beyond ranges and lengths this covers what silently gives wrong logits: two rows that write one slot, a
    trunk that runs into an unmapped block, and a row whose own slot is not the last one that it reads.
    """
    n = len(rows)
    num_slots = num_blocks * block_size
    _check_lengths(rows, n)
    _check_range("token", rows.tokens, vocab_size)
    _check_range("position", rows.positions, 2**31 - 1)
    _check_range("slot", rows.slots, num_slots)
    _check_range("sequence", rows.sequences, rows.block_tables.shape[0])
    _check_range("trunk length", rows.trunk_lengths, rows.block_tables.shape[1] * block_size + 1)
    _check_range("extra slot", rows.extra_slots, num_slots)
    _check_range("block table entry + 1", rows.block_tables.reshape(-1) + 1, num_blocks + 1)

    values, counts = np.unique(rows.slots, return_counts=True)
    if np.any(counts > 1):
        raise ConfigError(
            f"slot {int(values[counts > 1][0])} is written by more than one row of the same pass"
        )
    for i in range(n):
        visible = trunk_slots(rows, i, block_size)
        if np.any(visible < 0):
            missing = int(np.argmax(visible < 0)) // block_size
            raise ConfigError(
                f"row {i} sees {int(rows.trunk_lengths[i])} trunk positions, but block {missing} of its"
                f" sequence {int(rows.sequences[i])} is not mapped"
            )
        extra = extra_slots(rows, i)
        last = extra[-1] if len(extra) else (visible[-1] if len(visible) else -1)
        if last != rows.slots[i]:
            raise ConfigError(
                f"row {i} writes slot {int(rows.slots[i])}, but the last slot it reads is {int(last)};"
                " a row's own slot must come last"
            )


def trunk_slots(rows: Rows, row: int, block_size: int) -> IntArray:
    """Slots of the trunk positions that a row sees, oldest first; negative where a block is not mapped."""
    positions = np.arange(int(rows.trunk_lengths[row]))
    blocks = rows.block_tables[int(rows.sequences[row])][positions // block_size]
    return np.where(blocks < 0, -1, blocks * block_size + positions % block_size).astype(np.int32)


def extra_slots(rows: Rows, row: int) -> IntArray:
    """Slots of the row's own branch, in the order given."""
    return rows.extra_slots[int(rows.extra_offsets[row]) : int(rows.extra_offsets[row + 1])]


def _check_lengths(rows: Rows, n: int) -> None:
    for name in ("positions", "slots", "sequences", "trunk_lengths", "wants_logits"):
        shape = getattr(rows, name).shape
        if shape != (n,):
            raise ConfigError(f"{name} has shape {shape}, expected ({n},) as tokens has")
    if rows.block_tables.ndim != 2:
        raise ConfigError(f"block_tables has {rows.block_tables.ndim} dimensions, expected 2")
    if rows.extra_offsets.shape != (n + 1,):
        raise ConfigError(f"extra_offsets has shape {rows.extra_offsets.shape}, expected ({n + 1},)")
    offsets = rows.extra_offsets
    if offsets[0] != 0 or np.any(np.diff(offsets) < 0) or offsets[-1] != len(rows.extra_slots):
        raise ConfigError(
            f"extra_offsets must rise from 0 to {len(rows.extra_slots)} (the number of extra slots),"
            f" got {offsets.tolist()}"
        )


def _check_range(name: str, values: IntArray, end: int) -> None:
    bad = np.flatnonzero((values < 0) | (values >= end))
    if len(bad):
        i = int(bad[0])
        raise ConfigError(f"{name} {int(values[i])} at index {i} is outside 0 to {end - 1}")
