"""Spans, and the document made of them, against the rules of Chrome's Trace Event Format."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from sonoran.engine.trace import MAX_SPANS, Span, SpanLog, chrome_trace, from_plain, to_plain
from sonoran.ssd.messages import MAX_MESSAGE_BYTES, Stats, encode


def check_trace(text: str) -> list[dict[str, Any]]:
    """Raise AssertionError unless this is a trace in the JSON object format; return its complete events."""
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert isinstance(document["traceEvents"], list)
    assert document["displayTimeUnit"] in ("ms", "ns")
    complete: list[dict[str, Any]] = []
    for event in document["traceEvents"]:
        assert isinstance(event["name"], str)
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        assert event["ph"] in ("X", "M")
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "process_sort_index")
            assert set(event["args"]) == {"sort_index" if event["name"].endswith("index") else "name"}
            continue
        assert isinstance(event["cat"], str)
        assert all(math.isfinite(event[key]) and event[key] >= 0.0 for key in ("ts", "dur"))
        complete.append(event)
    for lane in {(event["pid"], event["tid"]) for event in complete}:
        open_until: list[float] = []
        for event in [event for event in complete if (event["pid"], event["tid"]) == lane]:
            begin, end = event["ts"], event["ts"] + event["dur"]
            while open_until and open_until[-1] <= begin + 1e-3:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-3, "slices of a lane must nest"
            open_until.append(end)
    return complete


def test_slices_are_in_microseconds_from_the_earliest_begin() -> None:
    lanes = {
        "target": [
            Span("forward", 10.5, 10.75, {"rows": 5}),
            Span("round", 10.5, 11.0),
            Span("round", 11.0, 11.5),
        ],
        "draft worker": [Span("reply", 10.25, 10.5)],
    }
    document = chrome_trace(lanes, {"model": "m"})
    events = check_trace(json.dumps(document))
    found = [(e["cat"], e["name"], e["ts"], e["dur"]) for e in events]
    assert found == [
        ("target", "round", 0.25e6, 0.5e6),
        ("target", "forward", 0.25e6, 0.25e6),
        ("target", "round", 0.75e6, 0.5e6),
        ("draft worker", "reply", 0.0, 0.25e6),
    ]
    assert events[1]["args"] == {"rows": 5}
    assert document["otherData"] == {"model": "m"}
    names = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"]
    assert names == ["target", "draft worker"]


def test_a_trace_of_nothing_is_a_trace() -> None:
    assert check_trace(json.dumps(chrome_trace({"target": []}))) == []


def test_a_log_keeps_the_newest_and_never_more_than_allowed() -> None:
    log = SpanLog(3)
    for number in range(5):
        log.add("x", float(number), number + 0.5, rows=number)
    assert [span.begin_s for span in log.spans()] == [2.0, 3.0, 4.0]
    large = SpanLog(10**9)
    for _ in range(MAX_SPANS + 10):
        large.add("just in time", 1.5, 2.5, rows=1234)
    assert len(large.spans()) == MAX_SPANS
    assert len(encode(Stats({"spans": to_plain(large.spans())}))) < MAX_MESSAGE_BYTES / 4


def test_spans_survive_a_message_and_can_be_moved() -> None:
    spans = [Span("reply", 1.0, 2.0, {"origins": ["primary"]}), Span("trunk pass", 2.0, 2.0)]
    assert from_plain(json.loads(json.dumps(to_plain(spans)))) == spans
    assert from_plain(to_plain(spans), 0.5)[0] == Span("reply", 1.5, 2.5, {"origins": ["primary"]})


@pytest.mark.parametrize(
    "value",
    [
        None,
        "spans",
        [7],
        [["x", 1.0]],
        [["x", 2.0, 1.0, {}]],
        [["x", float("nan"), 1.0, {}]],
        [["x", 0.0, float("inf"), {}]],
        [[3, 0.0, 1.0, {}]],
        [["x", 0.0, 1.0, []]],
        [["x", "0", 1.0, {}]],
    ],
)
def test_nonsense_from_a_worker_is_left_out(value: Any) -> None:
    assert from_plain(value) == []
