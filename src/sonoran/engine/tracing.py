"""Recording a run: the engine's own spans, and those of its draft worker."""

from __future__ import annotations

import logging
import time

from sonoran.draftworker.client import WorkerClient
from sonoran.engine.core import EngineCore
from sonoran.engine.drafters.ssd import SsdDrafter
from sonoran.trace.spans import MAX_SPANS, Span, SpanLog, from_plain

log = logging.getLogger(__name__)

_PATIENCE_S = 5.0  # for a worker that is in the middle of a long pass, on a machine with other work


def start_tracing(core: EngineCore, limit: int = MAX_SPANS) -> None:
    """Record from now on, the newest `limit` spans of each side. A worker that is replaced meanwhile records none."""
    core.spans = SpanLog(limit)
    client = _client(core)
    if client is not None:
        client.worker_stats(trace=limit, patience_s=_PATIENCE_S)


def end_tracing(core: EngineCore) -> dict[str, list[Span]]:
    """Stop recording and return the spans by lane; that of a worker is empty when it does not answer."""
    lanes = {"target": core.spans.spans() if core.spans is not None else []}
    core.spans = None
    client = _client(core)
    if client is None:
        return lanes
    asked = time.perf_counter()
    values = client.worker_stats(trace=0, patience_s=_PATIENCE_S)
    if values is None:
        log.warning("the draft worker did not send its part of the trace within %g s", _PATIENCE_S)
        values = {}
    shift = clock_shift(asked, time.perf_counter(), values.get("clock_s"))
    lanes["draft worker"] = from_plain(values.get("spans"), shift)
    return lanes


def clock_shift(asked_s: float, answered_s: float, clock_s: object) -> float:
    """Return what to add to a worker's times: 0 on one machine, where both sides have the same clock.

    `clock_s` is the worker's clock at some moment between asking and answer. When it lies between them, the clocks
    are taken to be the same. Otherwise it is taken to be the middle, which is wrong by at most half the time between.
    """
    if not isinstance(clock_s, float) or asked_s <= clock_s <= answered_s:
        return 0.0
    return 0.5 * (asked_s + answered_s) - clock_s


def _client(core: EngineCore) -> WorkerClient | None:
    drafter = getattr(core.drafter, "inner", core.drafter)  # one drafter may stand around another
    return drafter.client if isinstance(drafter, SsdDrafter) else None
