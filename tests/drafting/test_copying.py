"""Copies beside a draft: the text stays that of AR, the draft catches up, and a batch copies where it can."""

from __future__ import annotations

from typing import Any

import pytest

from sonoran.drafting.copying import CopyingDrafter
from sonoran.engine.drafter import DraftRequest
from sonoran.sampling.params import SamplingParams
from tests.engine.helpers import alone, engine, greedy, model_drafter, run, texts
from tests.engine.test_identity import PARAMS, PROMPTS
from tests.worker.local import LocalDrafter, toy_model

REPEATED = [[3, 1, 4, 1, 5, 9] * 5, [7] * 12, [*range(20), *range(20)]]
BIAS = {3: 30.0, 4: 30.0}  # texts of two tokens repeat themselves, and not always
COPIED = [
    greedy(60, logit_bias={3: 30.0}),
    SamplingParams(temperature=1.0, seed=5, max_tokens=60, logit_bias=BIAS),
    SamplingParams(temperature=1.0, seed=6, max_tokens=60, logit_bias=BIAS, frequency_penalty=0.5),
    SamplingParams(temperature=1.0, seed=7, max_tokens=60, logit_bias=BIAS, stop_token_ids=[9], logprobs=2),
]


def copying(**kwargs: Any) -> CopyingDrafter:
    """One whose clock stands still, so that a token is all that counts."""
    return CopyingDrafter(
        model_drafter(**kwargs), num_speculative_tokens=4, copy_tokens=15, clock=lambda: 0.0
    )


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("prompt", REPEATED)
def test_copied_texts_are_those_of_autoregressive_decoding(prompt: list[int], rule: str) -> None:
    for params in COPIED:
        if rule == "rejection":
            if not params.greedy:
                continue  # another text by design; see tests/sampling for its distribution
            params = greedy(60, logit_bias=BIAS, verification="rejection")
        for drafter in (copying(), LocalDrafter(toy_model(), copy_tokens=15)):
            core = engine(drafter=drafter, k=15)
            assert texts(run(core, (prompt, params)))[0] == alone(prompt, params)
            if isinstance(drafter, CopyingDrafter):
                assert drafter.policy.copies > 0
            if params.logit_bias != BIAS:
                assert max(core.stats.speculation.accepted_by_length) > 4, "longer than any draft"


@pytest.mark.parametrize("ssd", [False, True])
def test_a_batch_in_which_some_texts_repeat_gives_what_each_gives_alone(ssd: bool) -> None:
    drafter: Any = LocalDrafter(toy_model(), copy_tokens=15) if ssd else copying()
    core = engine(drafter=drafter, k=15, max_num_batched_tokens=64)
    jobs = [(prompt, params) for params in [*COPIED, *PARAMS[:3]] for prompt in [REPEATED[0], PROMPTS[1]]]
    for (prompt, params), result in zip(jobs, texts(run(core, *jobs)), strict=True):
        assert result == alone(prompt, params)


def test_under_the_rejection_rule_a_copy_has_point_masses() -> None:
    drafter = copying()
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=9, verification="rejection")
    text = [3, 1, 4, 1, 5, 9, 2, 6] * 4
    found = drafter.propose([DraftRequest(0, text, len(text), 15, params, 0)])[0]
    assert found.origin == "copy" and len(found.distributions) == len(found.tokens) > 0
    assert all(
        q.probability(token) == 1.0 for token, q in zip(found.tokens, found.distributions, strict=True)
    )
    core = engine(drafter=LocalDrafter(toy_model(), copy_tokens=15), k=15)
    run(
        core,
        (
            text,
            SamplingParams(temperature=1.0, seed=1, max_tokens=60, verification="rejection", logit_bias=BIAS),
        ),
    )


def test_the_draft_is_asked_for_no_more_than_its_own_length_and_not_at_all_where_a_copy_is_sent() -> None:
    drafter = copying()
    inner: Any = drafter.inner
    fresh = list(range(30))
    assert len(drafter.propose([DraftRequest(0, fresh, 30, 15, greedy(), 0)])[0]) <= 4
    passes = inner.stats()["num_passes"]
    found = drafter.propose([DraftRequest(1, [*fresh, *fresh], 60, 15, greedy(), 0)])[0]
    assert found.tokens == tuple(fresh[:15]) and found.origin == "copy"
    assert inner.stats()["num_passes"] == passes
    drafter.release(0)
    with pytest.raises(RuntimeError, match="still holds sequences \\[1\\]"):
        drafter.check_invariants()
    drafter.release(1)
    drafter.check_invariants()


def test_a_worker_without_copies_sends_none() -> None:
    drafter = LocalDrafter(toy_model())
    core = engine(drafter=drafter)
    run(core, (REPEATED[0], COPIED[0]))
    assert "copy" not in drafter.origins
