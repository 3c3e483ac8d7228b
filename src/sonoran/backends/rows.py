"""Rows of a pass along the trunks of sequences: prompts, decoding, verification, and the draft's trunk pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sonoran.backends.base import Backend, Rows
from sonoran.errors import ConfigError
from sonoran.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class TrunkPart:
    """One sequence's rows of a trunk pass: ``tokens`` from ``start`` on, logits for the last ones."""

    tokens: Sequence[int]  # what the draft has not read yet up to the bonus token, then the speculation
    start: int
    num_logits: int  # K + 1
    block_table: Sequence[int]


def trunk_rows(parts: Sequence[TrunkPart], block_size: int) -> Rows:
    """Build one trunk pass over many sequences; logits come in the order of the parts.

    Raises ConfigError when a part has no tokens, wants more logits than tokens, or its blocks do not reach.
    """
    tokens, positions, sequences, wants = [], [], [], []
    for i, part in enumerate(parts):
        size, end = len(part.tokens), part.start + len(part.tokens)
        if not 0 <= part.num_logits <= size or size == 0 or part.start < 0:
            raise ConfigError(
                f"a trunk part of {size} tokens from {part.start} cannot give {part.num_logits} logits"
            )
        if end > len(part.block_table) * block_size:
            raise ConfigError(f"{len(part.block_table)} blocks of {block_size} do not hold {end} positions")
        tokens.append(np.asarray(part.tokens, np.int32))
        positions.append(np.arange(part.start, end, dtype=np.int32))
        sequences.append(np.full(size, i, np.int32))
        wants.append((np.arange(size) >= size - part.num_logits).astype(np.int32))
    return Rows.trunk(
        join_arrays(tokens),
        join_arrays(positions),
        join_arrays(sequences),
        pad_tables([p.block_table for p in parts]),
        block_size,
        join_arrays(wants),
    )


def pad_tables(tables: Sequence[Sequence[int]]) -> IntArray:
    """Stack block tables of different lengths, int32[sequences, longest], unused entries -1."""
    padded = np.full((len(tables), max((len(t) for t in tables), default=0)), -1, np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return padded


def join_arrays(arrays: Sequence[IntArray]) -> IntArray:
    """Concatenate index arrays; an empty one for none."""
    return np.concatenate(arrays).astype(np.int32) if arrays else np.zeros(0, np.int32)


def forward_in_passes(backend: Backend, parts: Sequence[TrunkPart], max_rows: int) -> tuple[FloatArray, int]:
    """Run trunk parts in as many passes of at most `max_rows` rows as it takes.

    Returns the logits of all rows that want them, in order, and the number of passes.
    """
    passes: list[FloatArray] = []
    pieces: list[TrunkPart] = []
    room = max_rows

    def run() -> None:
        passes.append(backend.forward(trunk_rows(pieces, backend.block_size)))
        pieces.clear()

    for part in parts:
        done, size = 0, len(part.tokens)
        while done < size:
            count = min(room, size - done)
            wanted = min(count, max(0, part.num_logits - (size - done - count)))
            pieces.append(
                replace(
                    part, tokens=part.tokens[done : done + count], start=part.start + done, num_logits=wanted
                )
            )
            done += count
            room -= count
            if room == 0:
                run()
                room = max_rows
    if pieces:
        run()
    return (np.concatenate(passes) if len(passes) > 1 else passes[0]), len(passes)
