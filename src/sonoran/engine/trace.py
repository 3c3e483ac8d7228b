"""Spans: what was done from when to when. Recorded on both sides of SSD, and only when asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_SPANS = 20_000
"""The most that a log keeps (a round has about ten), far below what the longest message of a worker holds."""


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds on ``time.perf_counter``, which is one clock for all processes of a Linux machine."""

    name: str
    begin_s: float
    end_s: float
    args: dict[str, Any] = field(default_factory=dict)


class SpanLog:
    """The newest spans, at most ``limit`` of them."""

    def __init__(self, limit: int = MAX_SPANS) -> None:
        self._spans: deque[Span] = deque(maxlen=max(1, min(limit, MAX_SPANS)))

    def add(self, name: str, begin_s: float, end_s: float, **args: Any) -> None:
        """Record one span."""
        self._spans.append(Span(name, begin_s, end_s, args))

    def spans(self) -> list[Span]:
        """Return what is kept, in the order in which it ended."""
        return list(self._spans)


def to_plain(spans: list[Span]) -> list[list[Any]]:
    """Return spans as a message carries them."""
    return [[span.name, span.begin_s, span.end_s, span.args] for span in spans]


def from_plain(values: Any, shift_s: float = 0.0) -> list[Span]:
    """Read what `to_plain` wrote and move it by ``shift_s``; what makes no sense is left out."""
    spans = []
    for value in values if isinstance(values, list) else ():
        if not isinstance(value, list) or len(value) != 4:
            continue
        name, begin, end, args = value
        sound = all(isinstance(t, float) and abs(t) < 1e12 for t in (begin, end)) and begin <= end
        if sound and isinstance(name, str) and isinstance(args, dict):
            spans.append(Span(name, begin + shift_s, end + shift_s, args))
    return spans


def chrome_trace(
    lanes: Mapping[str, Sequence[Span]], facts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the JSON document: a lane for each entry, times counted from the earliest begin.

    ``facts`` about the run go along as ``otherData``. Spans in one lane nest or follow each other.
    """
    origin = min((span.begin_s for spans in lanes.values() for span in spans), default=0.0)
    events: list[dict[str, Any]] = []
    for number, (lane, spans) in enumerate(lanes.items(), start=1):
        place = {"pid": number, "tid": 1}
        for kind in ("process_name", "thread_name"):
            events.append({"ph": "M", "name": kind, **place, "args": {"name": lane}})
        events.append({"ph": "M", "name": "process_sort_index", **place, "args": {"sort_index": number}})
        # An enclosing slice has to come before the slices inside it that begin with it.
        for span in sorted(spans, key=lambda s: (s.begin_s, -s.end_s)):
            events.append(
                {
                    "ph": "X",
                    "name": span.name,
                    "cat": lane,
                    **place,
                    "ts": 1e6 * (span.begin_s - origin),
                    "dur": 1e6 * (span.end_s - span.begin_s),
                    "args": span.args,
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(facts or {})}
