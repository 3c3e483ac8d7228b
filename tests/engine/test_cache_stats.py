"""Counters of the speculation cache: definitions, sums over a run, truncation, batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from sonoran.drafting.adaptive import AdaptiveDrafter
from sonoran.engine.drafter import CachingDrafter, DraftAnswer, DraftRequest, DraftRound
from sonoran.engine.outputs import request_output
from sonoran.engine.sequence import Request
from sonoran.engine.stats import CacheStats
from sonoran.engine.trace import SpanLog
from sonoran.sampling.proposals import EMPTY, Speculation
from tests.engine.helpers import alone, engine, greedy, model_drafter, run, texts

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


class Cached:
    """A drafter in this process that claims to be a worker: every third answer is a miss without a speculation."""

    def __init__(self) -> None:
        self.inner = model_drafter()
        self.last_round: DraftRound | None = None
        self.rounds = 0
        self.asked: dict[int, int] = {}
        self.before: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Speculation]:
        speculations = self.inner.propose(requests)
        self.rounds += 1
        self.last_round = DraftRound(0.002 if self.rounds % 2 else 0.0001, hidden_s=0.25, exposed_s=0.125)
        for index, request in enumerate(requests):
            name = request.sequence_id
            self.asked[name] = self.asked.get(name, 0) + 1
            miss = self.asked[name] % 3 == 0
            origin: Any = "none" if miss else "primary"
            self.last_round.answers[name] = DraftAnswer(origin, self.before.get(name), (2, 1))
            self.before[name] = origin
            if miss:
                speculations[index] = EMPTY
        return speculations


def counters(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = request_output(request, 4).metrics["speculative_decoding"]
    return found


def test_the_definitions_on_a_small_example() -> None:
    stats = CacheStats()
    assert stats.as_dict() == {}
    first = DraftRound(0.004, 0.5, 0.25, {1: DraftAnswer("draft", None)})
    second = DraftRound(0.0005, 1.0, 0.0, {1: DraftAnswer("primary", "draft", (3, 1))})
    for draft, emitted in ((first, 2), (second, 5)):
        stats.record_round(draft, 0.1)
        stats.record_answer(draft.answers[1], emitted)
    stats.record_round(DraftRound(0.5), 0.6)  # no answer in time: a round like a miss, and no lookup
    found = stats.as_dict()
    assert (found["num_cache_hits"], found["num_cache_lookups"], found["cache_hit_rate"]) == (1, 2, 0.5)
    assert found["cache_hits_by_previous_origin"] == {
        "none": {"hits": 0, "lookups": 1, "rate": 0.0},
        "draft": {"hits": 1, "lookups": 1, "rate": 1.0},
    }
    assert found["num_speculations_by_origin"] == {"draft": 1, "primary": 1}
    assert (found["tokens_per_round_on_hit"], found["tokens_per_round_on_miss"]) == (5.0, 2.0)
    assert (found["draft_hidden_s"], found["draft_exposed_s"]) == (1.5, 0.25)
    assert found["draft_wait"]["hit"] == {
        "num_rounds": 1,
        "num_rounds_waited": 0,
        "wait_s": 0.0005,
        "longest_wait_s": 0.0005,
        "share_of_round": pytest.approx(0.005),
    }
    assert found["draft_wait"]["miss"]["num_rounds_waited"] == 2
    assert found["draft_wait"]["miss"]["longest_wait_s"] == 0.5
    assert found["fan_out"] == {"backup": [3, 1]}


def test_what_never_happened_has_no_rate() -> None:
    stats = CacheStats()
    stats.record_round(DraftRound(0.1), 0.2)
    found = stats.as_dict()
    assert found["num_cache_lookups"] == 0
    assert found["cache_hit_rate"] is found["tokens_per_round_on_hit"] is None


def test_totals_are_sums() -> None:
    one, two, both = CacheStats(), CacheStats(), CacheStats()
    for stats, draft, emitted in (
        (one, DraftRound(0.1, 1.0, 0.5, {1: DraftAnswer("primary", "primary", (1,))}), 3),
        (two, DraftRound(0.3, 2.0, 0.5, {1: DraftAnswer("ngram", "primary", (4,))}), 1),
    ):
        for target in (stats, both):
            target.record_round(draft, 1.0)
            target.record_answer(draft.answers[1], emitted)
    one.add(two)
    assert one == both


def test_counters_of_a_run_add_up() -> None:
    drafter = Cached()
    assert isinstance(drafter, CachingDrafter)
    params = greedy(40, ignore_eos=True)
    core = engine(drafter=drafter)
    request = run(core, (PROMPT, params))[0]
    assert texts([request])[0] == alone(PROMPT, params)
    found = counters(request)
    assert found["num_cache_lookups"] == drafter.rounds
    assert found["num_speculations_by_origin"] == {
        "primary": found["num_cache_hits"],
        "none": drafter.rounds - found["num_cache_hits"],
    }
    assert found["num_cache_hits"] == drafter.rounds - drafter.rounds // 3
    tokens = sum(
        found["tokens_per_round_by_origin"][origin] * count
        for origin, count in found["num_speculations_by_origin"].items()
    )
    # Beside the rounds in which it asked, the first token comes from the prompt; the last may be without K.
    assert round(tokens) in (39, 38)
    assert found["tokens_per_round_on_miss"] == 1.0
    assert found["draft_hidden_s"] == 0.25 * drafter.rounds
    waits = found["draft_wait"]
    assert waits["hit"]["num_rounds"] + waits["miss"]["num_rounds"] == drafter.rounds
    waited = waits["hit"]["num_rounds_waited"] + waits["miss"]["num_rounds_waited"]
    assert waited == (drafter.rounds + 1) // 2
    assert core.statistics()["speculative_decoding"]["num_cache_hits"] == found["num_cache_hits"]


def test_tokens_behind_a_stop_string_count_for_nothing() -> None:
    options: dict[str, Any] = {"logit_bias": {63: -100.0}}
    text = alone(PROMPT, greedy(40, **options))[0][1]
    for begin in range(5, 20):
        params = greedy(40, stop=text[begin : begin + 2], **options)
        request = run(engine(drafter=Cached()), (PROMPT, params))[0]
        metrics = request_output(request, 4).metrics
        found = metrics.get("speculative_decoding")
        if not found:
            continue
        tokens = sum(
            found["tokens_per_round_by_origin"][origin] * count
            for origin, count in found["num_speculations_by_origin"].items()
        )
        assert (
            round(tokens) + metrics["num_rounds"] - found["num_cache_lookups"]
            == (metrics["num_generated_tokens"])
        )


def test_a_batch_shares_its_rounds_and_the_totals_count_them_once() -> None:
    drafter = Cached()
    core = engine(drafter=drafter)
    params = greedy(20, ignore_eos=True)
    requests = run(core, (PROMPT, params), (PROMPT[::-1], params))
    total = core.statistics()["speculative_decoding"]
    parts = [counters(request) for request in requests]
    assert total["num_cache_lookups"] == sum(part["num_cache_lookups"] for part in parts)
    assert total["draft_hidden_s"] == 0.25 * drafter.rounds
    assert all(part["draft_hidden_s"] <= total["draft_hidden_s"] for part in parts)
    assert sum(part["draft_hidden_s"] for part in parts) > total["draft_hidden_s"]


def test_a_drafter_around_another_passes_on_what_was_asked() -> None:
    class Policy:
        stops = False
        k = 4

        def choose(self, batch: int) -> int:
            self.k = 4 if self.k == 0 else 0
            return self.k

        def observe_outcome(self, *_: Any) -> None:
            pass

        observe_time = observe_outcome

    inner = Cached()
    adaptive: Any = AdaptiveDrafter(inner, Policy())  # type: ignore[arg-type]
    request = run(engine(drafter=adaptive), (PROMPT, greedy(30, ignore_eos=True)))[0]
    assert counters(request)["num_cache_lookups"] == inner.rounds > 2


def test_spans_are_recorded_while_there_is_a_log() -> None:
    core = engine(drafter=Cached())
    run(core, (PROMPT, greedy(8)))
    rounds = core.stats.num_rounds
    core.spans = SpanLog()
    run(core, (PROMPT, greedy(8)))
    spans = core.spans.spans()
    outer = [span for span in spans if span.name == "round"]
    assert len(outer) == core.stats.num_rounds - rounds
    assert sum(sum(span.args["emitted"]) for span in outer) == 8
    assert {span.name for span in spans} == {
        "round", "schedule", "draft", "draft wait", "forward", "sampling", "rest",
    }  # fmt: skip
    for span, *inner in [spans[i : i + 6] for i in range(0, len(spans), 6)]:
        assert all(span.begin_s <= part.begin_s <= part.end_s <= span.end_s for part in inner)
        assert all(a.end_s <= b.begin_s for a, b in pairwise(inner))
