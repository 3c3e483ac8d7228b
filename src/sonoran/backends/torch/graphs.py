"""CUDA graphs: a pass of few rows is recorded once for its shape and replayed, which spares hundreds of launches.

Shapes are few: tiles of rows, tiles of wanted rows, and chunks of keys rounded up to a power of two; chunks beyond a
text change no bit. Not run on a GPU yet.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from sonoran.backends.torch.decoder import Decoder, DeviceRows
from sonoran.backends.torch.devices import import_torch
from sonoran.backends.torch.rows import CHUNK, TILE

MOST_TILES = 4
"""Longer passes are prompts: the device's work takes longer than the launches."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    graph: Any
    rows: DeviceRows  # where a pass finds its rows
    logits: Any


class Graphs:
    """Runs passes of a decoder, those of few rows by graphs that were recorded when their shape came first."""

    def __init__(self, decoder: Decoder, spare: int) -> None:
        self._decoder, self._spare = decoder, spare
        self._pool: Any = None  # memory that all graphs share: only one runs at a time
        self._recorded: dict[tuple[int, int, int], _Recorded] = {}

    def run(self, rows: DeviceRows) -> Any:
        """Return what ``Decoder.run`` does; the result is overwritten by the next pass of the same shape."""
        tiles, wanted = len(rows.tokens) // TILE, len(rows.wanted) // TILE
        if tiles > MOST_TILES or not wanted:
            return self._decoder.run(rows)
        chunks = rows.visible.shape[1] // CHUNK
        key = tiles, wanted, 1 << (chunks - 1).bit_length()
        if key not in self._recorded:
            self._recorded[key] = self._record(rows, key[2])
        recorded = self._recorded[key]
        for field in fields(DeviceRows):
            self._copy(getattr(recorded.rows, field.name), getattr(rows, field.name))
        recorded.graph.replay()
        return recorded.logits

    def forget(self) -> None:
        """Drop all graphs: what they were recorded of has changed."""
        self._recorded.clear()

    def _record(self, rows: DeviceRows, chunks: int) -> _Recorded:
        torch = import_torch()
        visible = torch.full((len(rows.tokens), chunks * CHUNK), self._spare, device=rows.tokens.device)
        own = DeviceRows(
            **{
                field.name: visible if field.name == "visible" else _clone(getattr(rows, field.name))
                for field in fields(DeviceRows)
            }
        )
        self._copy(visible, rows.visible)
        graph, logits = self.capture(own)
        return _Recorded(graph, own, logits)

    def capture(self, rows: DeviceRows) -> tuple[Any, Any]:
        """Return a graph of a pass over these tensors, and the logits that every replay writes."""
        cuda = import_torch().cuda
        # What a first run allocates and chooses must not be recorded; it writes what the replay writes again.
        side = cuda.Stream(rows.tokens.device)
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            self._decoder.run(rows)
        cuda.current_stream().wait_stream(side)
        self._pool = self._pool or cuda.graph_pool_handle()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, pool=self._pool):
            logits = self._decoder.run(rows)
        return graph, logits

    def _copy(self, target: Any, source: Any) -> None:
        if isinstance(target, tuple):
            for one, other in zip(target, source, strict=True):
                one.copy_(other)
        elif target.shape == source.shape:
            target.copy_(source)
        else:  # slots of fewer chunks
            target[:, : source.shape[1]] = source
            target[:, source.shape[1] :] = self._spare


def _clone(value: Any) -> Any:
    return tuple(one.clone() for one in value) if isinstance(value, tuple) else value.clone()
