"""Spans as a trace that chrome://tracing and Perfetto (https://ui.perfetto.dev) show.

The format is Chrome's *Trace Event Format*, as a JSON object: complete events (``ph`` "X") with begin and duration in
microseconds, and metadata events (``ph`` "M") that name processes and lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sonoran.trace.spans import Span


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
