"""How the draft does, for those who run vLLM: a line in its log now and then, metrics, and a trace."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from pathlib import Path
from typing import Any

from prometheus_client import Counter, Gauge

from sonoran.engine.trace import MAX_SPANS, Span, SpanLog, chrome_trace
from sonoran.errors import WorkerError
from sonoran.vllm.guest import Guest

log = logging.getLogger("vllm.sonoran")  # vLLM shows what lies below its own name

METRICS_EVERY_S = 1.0
TRACE_EVERY_S = 10.0


class Metrics:
    """Counters in the registry of this process, which ``/metrics`` of vLLM shows where the two share one.

    Made once in a process: names can be registered once.
    """

    _made: Metrics | None = None

    def __init__(self) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"sonoran:{name}", text, ("engine", *labels))

        self._lookups = counter("speculation_cache_lookups", "Outcomes looked up.", "before")
        self._hits = counter("speculation_cache_hits", "Outcomes that were in the cache.", "before")
        self._origins = counter("speculations", "Speculations by origin.", "origin")
        self._draft_tokens = counter("draft_tokens", "Tokens proposed.")
        self._accepted = counter("accepted_tokens", "Tokens accepted.")
        self._waits = counter("draft_wait_seconds", "Time that steps waited for the draft worker.", "kind")
        self._hidden = counter("draft_hidden_seconds", "Draft work that was hidden.")
        self._exposed = counter("draft_exposed_seconds", "Draft work that was exposed.")
        self._up = Gauge(
            "sonoran:draft_worker_up", "Whether it answers.", ("engine",), multiprocess_mode="livemax"
        )
        self._seen: dict[tuple[str, ...], float] = {}

    @classmethod
    def shared(cls) -> Metrics:
        """Return those of this process."""
        if cls._made is None:
            cls._made = cls()
        return cls._made

    def update(self, guest: Guest, engine: str) -> None:
        """Bring the counters up to what the guest has counted."""
        cache, speculation = guest.stats.cache, guest.stats.speculation
        for origin, (hits, lookups) in cache.hits.items():
            self._count(self._hits, "hits", hits, engine, origin)
            self._count(self._lookups, "lookups", lookups, engine, origin)
        for origin, (_, answers) in cache.worth.items():
            self._count(self._origins, "origins", answers, engine, origin)
        for kind, waits in cache.waits.items():
            self._count(self._waits, "waits", waits.wait_s, engine, kind)
        self._count(self._draft_tokens, "drafted", speculation.num_draft_tokens, engine)
        self._count(self._accepted, "accepted", speculation.num_accepted_draft_tokens, engine)
        self._count(self._hidden, "hidden", cache.hidden_s, engine)
        self._count(self._exposed, "exposed", cache.exposed_s, engine)
        self._up.labels(engine).set(guest.drafter.client.state == "up")

    def _count(self, counter: Counter, name: str, total: float, *labels: str) -> None:
        key = (name, *labels)
        before = self._seen.get(key, 0.0)
        if total > before:
            counter.labels(*labels).inc(total - before)
            self._seen[key] = total


class Report:
    """Tells of one guest when it is due; called after every step, in its thread."""

    def __init__(self, guest: Guest, *, engine: str, log_every_s: float, trace: Path | None) -> None:
        self._guest, self._engine, self._trace = guest, engine, trace
        self._log_every_s = log_every_s
        now = time.monotonic()
        self._logged = self._counted = self._traced = now
        self._before = summary(guest)
        self._metrics = Metrics.shared()
        self._drafted: deque[Span] = deque(maxlen=MAX_SPANS)
        if trace is not None:
            guest.spans = SpanLog()
            guest.drafter.record(MAX_SPANS)

    def look(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        if now - self._counted >= METRICS_EVERY_S:
            self._counted = now
            self._metrics.update(self._guest, self._engine)
        if self._log_every_s and now - self._logged >= self._log_every_s:
            after = summary(self._guest)
            if after["steps"] > self._before["steps"]:
                log.info(line(self._before, after, now - self._logged))
            self._before, self._logged = after, now
        if self._trace is not None and now - self._traced >= TRACE_EVERY_S:
            self.write_trace()

    def write_trace(self) -> None:
        """Write what was recorded so far, the newest spans of both sides."""
        guest, self._traced = self._guest, time.monotonic()
        if self._trace is None or guest.spans is None:
            return
        self._drafted.extend(guest.drafter.record(MAX_SPANS) or ())
        lanes = {"target": guest.spans.spans(), "draft worker": list(self._drafted)}
        self._trace.write_text(
            json.dumps(chrome_trace(lanes, {"engine": self._engine})) + "\n", encoding="utf-8"
        )

    def last_words(self) -> None:
        """Bring metrics and trace up to the end."""
        self._metrics.update(self._guest, self._engine)
        try:
            self.write_trace()
        except (OSError, WorkerError) as error:
            log.warning("the trace could not be written: %s", error)


def summary(guest: Guest) -> dict[str, Any]:
    """Return the totals that a line is made of."""
    cache, speculation = guest.stats.cache, guest.stats.speculation
    return {
        "steps": guest.asked.steps,
        "lookups": sum(lookups for _, lookups in cache.hits.values()),
        "hits": sum(hits for hits, _ in cache.hits.values()),
        "verifications": sum(count for _, count in cache.worth.values()),
        "emitted": sum(tokens for tokens, _ in cache.worth.values()),
        "drafted": speculation.num_draft_tokens,
        "accepted": speculation.num_accepted_draft_tokens,
        "waited_s": guest.asked.waited_s,
        "own_s": guest.asked.own_s,
        "state": guest.drafter.client.state,
        **{origin: count for origin, (_, count) in cache.worth.items()},
    }


def line(before: dict[str, Any], after: dict[str, Any], seconds: float) -> str:
    """Return what happened between two summaries, in one line."""
    new = {key: after[key] - before.get(key, 0) for key in after if key != "state"}
    origins = ", ".join(
        f"{key} {new[key]}" for key in ("primary", "draft", "ngram", "random", "none") if new.get(key)
    )
    if not new["verifications"]:
        return f"SSD: {new['steps']} steps in {seconds:.0f} s without a speculation; the worker is {after['state']}"
    return (
        f"SSD: {new['steps']} steps in {seconds:.0f} s, hit rate {new['hits'] / max(1, new['lookups']):.2f}, "
        f"tokens per verification {new['emitted'] / new['verifications']:.2f}, "
        f"accepted {new['accepted']} of {new['drafted']} drafted, by origin: {origins}; "
        f"per step waited {1e3 * new['waited_s'] / new['steps']:.2f} ms for the worker, "
        f"which is {after['state']}, and {1e3 * new['own_s'] / new['steps']:.2f} ms for bookkeeping"
    )
