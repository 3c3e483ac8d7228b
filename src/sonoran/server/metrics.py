"""Metrics for Prometheus: vLLM's names for what vLLM means by them, ``sonoran:`` for what only this engine has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sonoran.llm import LLM
from sonoran.sampling.params import SamplingParams
from sonoran.types import RequestDelta, RoundEvent, TokenOrigin

TTFT = (
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560
)  # fmt: skip
ITL = (.005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # fmt: skip
LATENCY = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)  # fmt: skip
ROWS = tuple(2.0**i for i in range(15))
COUNTS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))
SHARES = tuple(i / 10 for i in range(11))

Labels = dict[str, str]


class Metrics:
    """What a server counts. ``round`` is called in the engine's thread, everything else in the loop's."""

    def __init__(self, llm: LLM, model: str) -> None:
        self.registry = CollectorRegistry()
        self._labels: Labels = {"model_name": model, "engine": "0"}
        self._last: dict[tuple[str, int], float] = {}  # when a sample last got tokens
        k = llm.longest_speculation
        self._ttft = self._histogram(
            "vllm:time_to_first_token_seconds", "From arrival to the first token.", TTFT
        )
        self._itl = self._histogram(
            "vllm:inter_token_latency_seconds",
            "Time between tokens; m tokens of one round count m times, each a share of the time since the last.",
            ITL,
        )
        self._tpot = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time per token after the first.", ITL
        )
        self._e2e = self._histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", LATENCY)
        self._queue = self._histogram(
            "vllm:request_queue_time_seconds", "From arrival to the first row.", LATENCY
        )
        self._prefill = self._histogram(
            "vllm:request_prefill_time_seconds", "From the first row to the first token.", LATENCY
        )
        self._decode = self._histogram(
            "vllm:request_decode_time_seconds", "From the first token to the end.", LATENCY
        )
        self._inference = self._histogram(
            "vllm:request_inference_time_seconds", "From the first row to the end.", LATENCY
        )
        self._prompt = self._histogram("vllm:request_prompt_tokens", "Tokens of prompts.", COUNTS)
        self._generated = self._histogram("vllm:request_generation_tokens", "Tokens generated.", COUNTS)
        self._n = self._histogram("vllm:request_params_n", "Texts asked for.", (1, 2, 5, 10, 20))
        self._max_tokens = self._histogram("vllm:request_params_max_tokens", "Limits asked for.", COUNTS)
        self._iteration = self._histogram("vllm:iteration_tokens_total", "Rows of a round.", ROWS)
        self._rate = self._histogram(
            "sonoran:request_acceptance_rate", "Accepted / proposed draft tokens of a request.", SHARES
        )
        self._accepted = self._histogram(
            "sonoran:accepted_per_verification",
            "Draft tokens accepted by a verification.",
            range(max(1, k) + 1),
        )
        self._success = self._counter(
            "vllm:request_success",
            "Requests that ended.",
            "finished_reason",
            ("stop", "length", "abort", "error"),
        )
        self._rejections = self._counter(
            "vllm:admission_rejections",
            "Requests that were not let in.",
            "reason",
            ("queue_full", "queued_tokens", "queue_timeout"),
        )
        self._gone = self._counter(
            "sonoran:disconnects", "Clients that went away.", "phase", ("queued", "prefill", "decoding")
        )
        self._origins = self._counter(
            "sonoran:spec_emitted_tokens",
            "Tokens by where they came from.",
            "origin",
            get_args(TokenOrigin),
        )
        self.http = Counter(
            "sonoran:http_requests",
            "Answers.",
            ("model_name", "engine", "path", "code"),
            registry=self.registry,
        )
        self.registry.register(Totals(llm, self._labels))

    def text(self) -> bytes:
        """Return the page that Prometheus reads."""
        return generate_latest(self.registry)

    def answered(self, path: str, code: int) -> None:
        """Count an answer; ``path`` is that of a route, never what a client wrote."""
        self.http.labels(**self._labels, path=path, code=str(code)).inc()

    def reject(self, reason: str) -> None:
        """Count a request that was not let in."""
        self._rejections.labels(**self._labels, reason=reason).inc()

    def disconnected(self, phase: str) -> None:
        """Count a client that went away."""
        self._gone.labels(**self._labels, phase=phase).inc()

    def failed(self, reason: str, count: int) -> None:
        """Count requests that did not come to their end."""
        self._success.labels(**self._labels, finished_reason=reason).inc(count)

    def round(self, event: RoundEvent) -> None:
        """Count a round."""
        self._iteration.observe(event.num_rows)
        for sample in event.samples:
            if not sample.emitted:
                continue
            name, count = (sample.request_id, sample.index), len(sample.emitted)
            last, self._last[name] = self._last.get(name), event.end_s
            for _ in range(count if last is not None else 0):
                self._itl.observe((event.end_s - (last or 0.0)) / count)
            if sample.proposed:
                self._accepted.observe(min(sample.accepted, count))
            for origin in sample.origins:
                self._origins.labels(**self._labels, origin=origin).inc()
        if len(self._last) > 4096:
            self._last = dict(list(self._last.items())[2048:])

    def finished(self, params: SamplingParams, delta: RequestDelta) -> None:
        """Count a request at its end."""
        metrics = delta.metrics
        reasons = {sample.finish_reason for sample in delta.samples} - {None}
        reason = "abort" if "cancelled" in reasons else "length" if "length" in reasons else "stop"
        self._success.labels(**self._labels, finished_reason=reason).inc()
        for index in range(params.n):
            self._last.pop((delta.request_id, index), None)
        self._prompt.observe(metrics["num_prompt_tokens"])
        self._generated.observe(metrics["num_generated_tokens"])
        self._n.observe(params.n)
        if params.max_tokens is not None:
            self._max_tokens.observe(params.max_tokens)
        ttft, queue, e2e = metrics["ttft_s"], metrics["queue_s"], metrics["e2e_s"]
        self._e2e.observe(e2e)
        for histogram, value in (
            (self._ttft, ttft),
            (self._queue, queue),
            (self._tpot, metrics["tpot_s"]),
            (self._prefill, None if ttft is None else ttft - (queue or 0.0)),
            (self._decode, None if ttft is None else e2e - ttft),
            (self._inference, None if queue is None else e2e - queue),
        ):
            if value is not None:
                histogram.observe(value)
        speculation = metrics.get("speculative_decoding")
        if speculation and speculation["num_draft_tokens"]:
            self._rate.observe(speculation["draft_acceptance_rate"])

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        found = Histogram(
            name, text, tuple(self._labels), buckets=tuple(map(float, buckets)), registry=self.registry
        )
        return found.labels(**self._labels)

    def _counter(self, name: str, text: str, label: str, values: Iterable[str]) -> Counter:
        counter = Counter(name, text, (*self._labels, label), registry=self.registry)
        for value in values:
            counter.labels(**self._labels, **{label: value})
        return counter


class Totals(Collector):
    """The engine's own totals, read when they are asked for."""

    def __init__(self, llm: LLM, labels: Labels) -> None:
        self._llm, self._labels = llm, labels

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield all of them."""
        now = self._llm.snapshot()
        yield self._gauge("vllm:num_requests_running", "Sequences that run.", now["num_running"])
        yield self._gauge("vllm:num_requests_waiting", "Sequences that wait.", now["num_waiting"])
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV memory that is held.", now["kv_usage"])
        for name, text, value in (
            ("vllm:prompt_tokens", "Tokens of prompts.", now["num_prompt_tokens"]),
            ("vllm:prompt_tokens_cached", "Of these, found in KV memory.", now["num_cached_tokens"]),
            ("vllm:prefix_cache_queries", "Tokens looked for in KV memory.", now["num_prompt_tokens"]),
            ("vllm:prefix_cache_hits", "Tokens found there.", now["num_cached_tokens"]),
            ("vllm:generation_tokens", "Tokens generated.", now["num_generated_tokens"]),
            ("vllm:num_preemptions", "Sequences that had to give up their memory.", now["num_preemptions"]),
            ("sonoran:rounds", "Rounds.", now["num_rounds"]),
        ):
            yield self._counter(name, text, [({}, value)])
        parts = [({"part": part}, seconds) for part, seconds in now["time_s"].items() if part != "total"]
        yield self._counter("sonoran:round_seconds", "What the time of rounds went into.", parts)
        yield from self._speculation(now.get("speculative_decoding", {}))
        yield from self._worker(now.get("drafter", {}))

    def _speculation(self, spec: dict[str, Any]) -> Iterator[CounterMetricFamily]:
        k = self._llm.longest_speculation
        for name, key, text in (
            ("drafts", "num_spec_steps", "Speculations verified."),
            ("draft_tokens", "num_draft_tokens", "Tokens proposed."),
            ("accepted_tokens", "num_accepted_draft_tokens", "Tokens accepted."),
        ):
            yield self._counter(f"vllm:spec_decode_num_{name}", text, [({}, spec.get(key, 0))])
        accepted = spec.get("accepted_per_position", [0] * k)
        yield self._counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Tokens accepted at each position.",
            [({"position": str(i)}, count) for i, count in enumerate(accepted)],
        )
        before = spec.get("cache_hits_by_previous_origin", {})
        yield self._counter(
            "sonoran:speculation_cache_lookups",
            "Outcomes looked up.",
            [({"before": origin}, counts["lookups"]) for origin, counts in before.items()],
        )
        yield self._counter(
            "sonoran:speculation_cache_hits",
            "Outcomes that were in the cache.",
            [({"before": origin}, counts["hits"]) for origin, counts in before.items()],
        )
        yield self._counter(
            "sonoran:speculations",
            "Speculations by origin.",
            [({"origin": o}, n) for o, n in spec.get("num_speculations_by_origin", {}).items()],
        )
        for name in ("hidden", "exposed"):
            text = f"Draft work that was {name}."
            yield self._counter(
                f"sonoran:draft_{name}_seconds", text, [({}, spec.get(f"draft_{name}_s", 0.0))]
            )
        yield self._counter(
            "sonoran:draft_wait_seconds",
            "Time that rounds waited for the draft worker.",
            [({"kind": kind}, waits["wait_s"]) for kind, waits in spec.get("draft_wait", {}).items()],
        )

    def _worker(self, drafter: dict[str, Any]) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        connection = drafter.get("connection")
        if connection is None:
            return
        yield self._gauge("sonoran:draft_worker_up", "Whether it answers.", connection.get("state") == "up")
        for name, key in (
            ("restarts", "restarts"),
            ("lost_sessions", "lost"),
            ("late_replies", "late_replies"),
        ):
            if key in connection:
                yield self._counter(f"sonoran:draft_worker_{name}", f"{name}.", [({}, connection[key])])
        yield self._counter(
            "sonoran:draft_worker_garbage",
            "Answers that made no sense.",
            [({}, drafter.get("garbage_answers", 0) + connection.get("garbage", 0))],
        )

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), float(value))
        return family

    def _counter(self, name: str, text: str, values: list[tuple[Labels, float]]) -> CounterMetricFamily:
        more = tuple(values[0][0]) if values else ()
        family = CounterMetricFamily(name, text, labels=(*self._labels, *more))
        for labels, value in values:
            family.add_metric((*self._labels.values(), *labels.values()), float(value))
        return family
