"""SSD without a process: the text is that of AR whatever the draft does, and the cache is hit."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sonoran.sampling.params import SamplingParams
from tests.engine.helpers import alone, engine, greedy, run, texts
from tests.engine.test_identity import PARAMS, PROMPTS
from tests.toy_backend import ToyBackend
from tests.worker.local import LocalDrafter, toy_model


def ssd(passes: int | None = None, model: dict[str, Any] | None = None, **settings: Any) -> LocalDrafter:
    return LocalDrafter(toy_model(**(model or {})), passes, **settings)


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("backup", ["draft", "ngram", "random", "none", "auto"])
def test_the_text_is_that_of_autoregressive_decoding(params: SamplingParams, backup: str) -> None:
    core = engine(drafter=ssd(backup=backup))
    for prompt in PROMPTS[:3]:
        assert texts(run(core, (prompt, params)))[0] == alone(prompt, params)


@pytest.mark.parametrize("passes", [0, 1, 2, 3])
def test_an_abandoned_round_gives_shorter_speculations_and_the_same_text(passes: int) -> None:
    drafter = ssd(passes, backup="none", top_up=False)
    core = engine(drafter=drafter)
    for prompt in PROMPTS:
        for params in PARAMS[:3]:
            assert texts(run(core, (prompt, params)))[0] == alone(prompt, params)
    longest = max(core.stats.speculation.accepted_by_length, default=0)
    assert longest == max(0, passes - 1), "one token is drafted per tree step, after the trunk pass"


@pytest.mark.parametrize("passes", [2, 3])
def test_an_abandoned_branch_is_drafted_on_while_the_target_waits(passes: int) -> None:
    drafter = ssd(passes, {"salt": 0}, backup="none", least_chance=0.0)
    core = engine(drafter=drafter)
    for params in (greedy(40), SamplingParams(temperature=1.0, seed=5, max_tokens=40)):
        assert texts(run(core, (PROMPTS[0], params)))[0] == alone(PROMPTS[0], params)
    counters = drafter.worker.session.speculator.stats()
    assert counters["topped_up"] > 0
    assert max(core.stats.speculation.accepted_by_length, default=0) == 4


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_without_confidence_sends_little(rule: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=60, verification=rule)
    lengths = {}
    for least in (0.0, 0.1, 1.0):
        drafter = ssd(model={"noise": 0.4}, backup="draft", budget=8, least_chance=least)
        core = engine(drafter=drafter)
        request = run(core, (PROMPTS[0], params))
        if rule == "coupled" or temperature == 0.0:
            assert texts(request)[0] == alone(PROMPTS[0], params)
        drafted = core.stats.speculation.num_draft_tokens
        lengths[least] = drafted / core.stats.speculation.num_spec_steps
        assert drafter.worker.session.speculator.stats()["topped_up"] == 0, "what has ended is complete"
    assert 1.0 == lengths[1.0] <= lengths[0.1] <= lengths[0.0]
    assert lengths[0.0] > 2.0


@pytest.mark.parametrize("seed", range(3))
def test_mixed_batches_with_rounds_of_any_length(seed: int) -> None:
    chance = random.Random(seed)
    drafter = ssd(model={"num_blocks": 90}, backup="auto", budget="auto")
    target = ToyBackend()

    def hurry() -> None:
        drafter.worker.passes = chance.choice([0, 1, 2, 5, None])

    target.before_forward = hurry
    core = engine(target, drafter, max_num_seqs=5)
    jobs = [(prompt, params) for prompt in PROMPTS for params in PARAMS]
    for job, request in zip(jobs, run(core, *jobs), strict=True):
        assert texts([request])[0] == alone(*job)


@pytest.mark.parametrize("params", [greedy(60), SamplingParams(temperature=1.0, seed=3, max_tokens=60)])
@pytest.mark.parametrize("fan_out", ["confidence", "uniform", "geometric", "measured", "explicit"])
def test_a_good_draft_hits_the_cache(params: SamplingParams, fan_out: str) -> None:
    lists = {"fan_out_primary": (2, 2, 2, 2, 4)} if fan_out == "explicit" else {"budget": 12}
    drafter = ssd(model={"noise": 0.6}, fan_out=fan_out, backup="draft", **lists)
    core = engine(drafter=drafter)
    run(core, *[(prompt, params) for prompt in PROMPTS])
    counters = drafter.worker.session.speculator.stats()
    assert counters["hits"] > counters["misses"]
    assert drafter.origins.count("primary") == counters["hits"]


def test_a_draft_equal_to_the_target_is_always_accepted_and_always_hit() -> None:
    drafter = ssd(model={"salt": 0}, backup="none")
    core = engine(drafter=drafter)
    run(core, ([3, 1, 4], greedy(50, ignore_eos=True)))
    speculation = core.stats.speculation
    assert speculation.num_accepted_draft_tokens == speculation.num_verified_draft_tokens
    assert set(drafter.origins) == {"primary"}, (
        "the first token too is guessed, once the draft has read the prompt"
    )


def test_nothing_is_guessed_before_the_prompt_was_read() -> None:
    drafter = ssd(1, {"salt": 0}, backup="none")
    run(engine(drafter=drafter), ([3, 1, 4], greedy(9)))
    assert set(drafter.origins) == {"none"}


@pytest.mark.parametrize("saguaro_c", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("backup", ["draft", "ngram", "random", "none", "auto"])
def test_rejection_runs_with_every_backup(saguaro_c: float, backup: str) -> None:
    drafter = ssd(model={"noise": 0.6}, backup=backup, saguaro_c=saguaro_c)
    core = engine(drafter=drafter)
    params = [
        SamplingParams(temperature=1.0, seed=s, max_tokens=30, verification="rejection") for s in range(4)
    ]
    requests = run(core, *[(prompt, p) for prompt in PROMPTS for p in params])
    assert all(len(r.sequences[0].output_ids) <= 30 for r in requests)
    assert core.stats.speculation.num_accepted_draft_tokens > 0


def test_saguaro_sampling_raises_the_hit_rate() -> None:
    rates = []
    for c in (1.0, 0.0):
        drafter = ssd(model={"noise": 1.0}, backup="draft", saguaro_c=c, fan_out="uniform", budget=10)
        params = [
            SamplingParams(temperature=1.3, seed=s, max_tokens=80, verification="rejection")
            for s in range(12)
        ]
        run(engine(drafter=drafter), *[(PROMPTS[0], p) for p in params])
        counters = drafter.worker.session.speculator.stats()
        rates.append(counters["hits"] / (counters["hits"] + counters["misses"]))
    assert rates[1] > rates[0]


def test_the_time_between_two_requests_is_no_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def tick() -> float:
        clock[0] += 0.001
        return clock[0]

    monkeypatch.setattr("sonoran.ssd.speculator.time.perf_counter", tick)
    drafter = ssd(backup="draft")
    core = engine(drafter=drafter)
    for _ in range(3):
        run(core, (PROMPTS[0], greedy(20)))
        clock[0] += 1000.0
    assert drafter.worker.session.speculator.stats()["verification_ms"] < 1000.0
