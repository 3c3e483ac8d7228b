"""The text depends on prompt, parameters and seed; never on drafter, batch, or memory."""

from __future__ import annotations

from typing import Any

import pytest

from sonoran.sampling.params import SamplingParams
from tests.engine.helpers import alone, drain, engine, greedy, model_drafter, run, texts
from tests.toy_backend import ToyBackend

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8], [9], list(range(30)), [5, 5, 5, 5, 5, 5, 5]]
PARAMS = [
    greedy(),
    SamplingParams(temperature=1.0, seed=11, max_tokens=30),
    SamplingParams(temperature=0.7, top_p=0.9, top_k=20, seed=12, max_tokens=17),
    SamplingParams(temperature=1.3, min_p=0.05, seed=13, max_tokens=25, repetition_penalty=1.2, logprobs=2),
    SamplingParams(
        temperature=0.9,
        seed=14,
        max_tokens=21,
        presence_penalty=0.6,
        frequency_penalty=0.4,
        logit_bias={3: 2.0},
    ),
    SamplingParams(temperature=1.0, seed=15, max_tokens=40, min_tokens=35, stop=("b", "cd")),
    greedy(40, ignore_eos=True, n=3),
    SamplingParams(temperature=1.0, seed=16, max_tokens=12, n=4),
]
DRAFTERS: dict[str, dict[str, Any]] = {
    "good": {"noise": 1.6},
    "equal to the target": {"salt": 0},
    "useless": {"seed": 99},
    "restricted": {"vocab": list(range(0, 64, 2))},
    "short of memory": {"num_blocks": 12},
    "short context": {"max_position": 20},
}


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("params", PARAMS)
def test_speculation_does_not_change_the_text(name: str, params: SamplingParams) -> None:
    core = engine(drafter=model_drafter(**DRAFTERS[name]))
    for prompt in PROMPTS[:2]:
        assert texts(run(core, (prompt, params)))[0] == alone(prompt, params)


@pytest.mark.parametrize("k", [0, 1, 2, 7])
def test_any_k_gives_the_same_text(k: int) -> None:
    core = engine(drafter=model_drafter(), k=k)
    for params in PARAMS[:4]:
        assert texts(run(core, (PROMPTS[0], params)))[0] == alone(PROMPTS[0], params)


@pytest.mark.parametrize("drafter", [None, "good", "short of memory"])
@pytest.mark.parametrize("num_blocks", [64, 24])
def test_a_mixed_batch_gives_what_each_request_gives_alone(drafter: str | None, num_blocks: int) -> None:
    core = engine(
        ToyBackend(num_blocks=num_blocks),
        drafter=model_drafter(**DRAFTERS[drafter]) if drafter else None,
        max_num_seqs=5,
        max_num_batched_tokens=16,
    )
    jobs = [(prompt, params) for params in PARAMS for prompt in PROMPTS]
    results = texts(run(core, *jobs))
    for (prompt, params), result in zip(jobs, results, strict=True):
        assert result == alone(prompt, params, max_model_len=num_blocks * 4)


def test_logprobs_are_the_same_with_and_without_speculation() -> None:
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=30, logprobs=3)
    plain = run(engine(), (PROMPTS[0], params))[0].sequences[0]
    fast = run(engine(drafter=model_drafter()), (PROMPTS[0], params))[0].sequences[0]
    assert plain.logprobs == fast.logprobs
    assert len(plain.logprobs) == len(plain.output_ids)


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    for params in (
        greedy(41, ignore_eos=True),
        SamplingParams(temperature=1.0, seed=5, max_tokens=41, ignore_eos=True),
    ):
        stats = (
            run(engine(drafter=model_drafter(salt=0), k=4), (PROMPTS[0], params))[0]
            .sequences[0]
            .stats.speculation
        )
        assert stats.acceptance_rate == 1.0
        assert stats.mean_acceptance_length == 5.0
        assert stats.num_spec_steps == 8


def test_the_rejection_rule_runs_with_every_drafter() -> None:
    for options in DRAFTERS.values():
        core = engine(drafter=model_drafter(**options))
        params = SamplingParams(
            temperature=1.0, seed=3, max_tokens=40, verification="rejection", ignore_eos=True
        )
        first, second = (run(core, (PROMPTS[0], params))[0].sequences[0].output_ids for _ in range(2))
        assert len(first) == 40
        assert first == second


def test_greedy_is_the_same_under_both_rules() -> None:
    core = engine(drafter=model_drafter())
    params = greedy(verification="rejection")
    assert texts(run(core, (PROMPTS[0], params)))[0] == alone(PROMPTS[0], greedy())


def test_requests_that_join_later_change_nothing() -> None:
    core = engine(drafter=model_drafter(), max_num_seqs=3)
    requests = []
    for index, prompt in enumerate(PROMPTS * 2):
        request = core.prepare(f"r{index}", prompt, PARAMS[index % 4])
        core.add(request)
        requests.append((prompt, PARAMS[index % 4], request))
        core.step()
    drain(core)
    for prompt, params, request in requests:
        assert texts([request])[0] == alone(prompt, params)
