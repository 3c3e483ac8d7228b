"""From a planned round to the rows of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sonoran.backends.base import Backend, Rows
from sonoran.drafting import layout
from sonoran.drafting.layout import TrunkPart
from sonoran.types import FloatArray


def trunk_rows(
    spans: Sequence[tuple[Sequence[int], int, int]], tables: Sequence[Sequence[int]], block_size: int
) -> Rows:
    """Build rows that append to sequences.

    ``spans[i]`` is ``(token ids, position of the first, number of last rows that want logits)`` of the
    sequence with block table ``tables[i]``, whose blocks exist already. Rows are in the order of the spans.
    """
    parts = [TrunkPart(*span, table) for span, table in zip(spans, tables, strict=True)]
    return layout.trunk_rows(parts, block_size)


def forward_in_passes(
    backend: Backend,
    spans: Sequence[tuple[Sequence[int], int, int]],
    tables: Sequence[Sequence[int]],
    max_rows: int,
) -> tuple[FloatArray, int]:
    """Run spans (see `trunk_rows`) in as many passes of at most `max_rows` rows as it takes.

    Returns the logits of all rows that want them, in order, and the number of passes.
    """
    passes: list[FloatArray] = []
    pieces: list[tuple[Sequence[int], int, int]] = []
    owners: list[Sequence[int]] = []
    room = max_rows

    def run() -> None:
        passes.append(backend.forward(trunk_rows(pieces, owners, backend.block_size)))
        pieces.clear()
        owners.clear()

    for (ids, start, wanted), table in zip(spans, tables, strict=True):
        done = 0
        while done < len(ids):
            count = min(room, len(ids) - done)
            behind = len(ids) - done - count
            pieces.append((ids[done : done + count], start + done, min(count, max(0, wanted - behind))))
            owners.append(table)
            done += count
            room -= count
            if room == 0:
                run()
                room = max_rows
    if pieces:
        run()
    return (np.concatenate(passes) if len(passes) > 1 else passes[0]), len(passes)
