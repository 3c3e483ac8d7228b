"""Drafters: how they keep up with the text, what they see of it, and that their failures cost no text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sonoran.backends.vocabulary import KnownTokens
from sonoran.drafting.ngram import NgramDrafter
from sonoran.engine.drafter import DraftRequest
from sonoran.errors import NumericsError
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import EMPTY, Speculation
from sonoran.types import Outcome
from tests.engine.helpers import alone, drain, engine, greedy, model_drafter, run, texts

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def ask(tokens: list[int], wanted: int = 4, sequence_id: int = 0, **params: Any) -> DraftRequest:
    return DraftRequest(sequence_id, tokens, 1, wanted, replace(greedy(), **params), 0)


def fresh(tokens: list[int], wanted: int = 4) -> tuple[int, ...]:
    return model_drafter().propose([ask(tokens, wanted)])[0].tokens


def test_the_draft_follows_acceptance_rejection_and_rounds_it_missed() -> None:
    drafter = model_drafter()
    tokens = list(PROMPT)
    for step in range(12):
        proposed = drafter.propose([ask(tokens)])[0].tokens
        assert proposed == fresh(tokens)
        kept = proposed[: step % 5]
        tokens = [*tokens, *kept, (kept[-1] if kept else 0) + 1 if step % 2 else 17]
        if step % 3 == 2:
            tokens = [*tokens, 8, 8, 8, 8, 8, 8, 8]


def test_only_what_is_new_runs_through_the_draft() -> None:
    drafter = model_drafter()
    backend: Any = drafter.backend
    first = drafter.propose([ask(list(PROMPT))])[0].tokens
    assert backend.rows == len(PROMPT) + 3
    # All four accepted, and a bonus token: the last draft token never ran, and the bonus is new.
    drafter.propose([ask([*PROMPT, *first, 9])])
    assert backend.row_counts[4:] == [2, 1, 1, 1]
    # Nothing accepted: one new token.
    drafter.propose([ask([*PROMPT, *first, 9, 60])])
    assert backend.row_counts[8:] == [1, 1, 1, 1]


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_without_confidence_proposes_less_of_the_same(rule: str, temperature: float) -> None:
    lengths = []
    for least in (0.0, 0.3, 1.0):
        drafter = model_drafter(least_chance=least)
        whole = model_drafter()
        found = []
        for first in range(24):
            request = ask([*PROMPT, first], temperature=temperature, seed=7, verification=rule)
            tokens = drafter.propose([request])[0].tokens
            assert tokens == whole.propose([request])[0].tokens[: len(tokens)]
            found.append(len(tokens))
            drafter.release(0), whole.release(0)
        drafter.check_invariants()
        lengths.append(found)
    assert set(lengths[0]) == {4}
    assert len(set(lengths[1])) > 1
    assert max(lengths[2]) < 4 and min(lengths[2]) == 1


def test_sequences_of_a_batch_end_each_at_their_own_length() -> None:
    prompts = [[*PROMPT, first] for first in range(8)]
    together = model_drafter(least_chance=0.3).propose([ask(p, sequence_id=i) for i, p in enumerate(prompts)])
    alone_ = [model_drafter(least_chance=0.3).propose([ask(p)])[0] for p in prompts]
    assert together == alone_
    assert len({len(s) for s in together}) > 1


def test_ending_early_changes_no_text() -> None:
    for params in (greedy(30), SamplingParams(temperature=1.0, seed=3, max_tokens=30)):
        core = engine(drafter=model_drafter(least_chance=0.4))
        assert texts(run(core, (PROMPT, params)))[0] == alone(PROMPT, params)
        stats = core.stats.speculation
        assert 0 < stats.num_draft_tokens < 4 * stats.num_spec_steps


def test_long_prompts_reach_the_draft_in_passes_of_bounded_size() -> None:
    drafter = model_drafter(max_rows=64)
    backend: Any = drafter.backend
    prompt = [i % 50 for i in range(150)]
    assert (
        drafter.propose([ask(prompt)])[0].tokens
        == model_drafter(max_rows=64).propose([ask(prompt)])[0].tokens
    )
    assert backend.row_counts == [64, 64, 22, 1, 1, 1]


def test_a_batch_gives_what_each_sequence_gives_alone() -> None:
    drafter = model_drafter()
    prompts = [PROMPT, [1], [5, 5, 5, 5, 5], list(range(20))]
    batch = drafter.propose(
        [ask(p, wanted, i) for i, (p, wanted) in enumerate(zip(prompts, [4, 1, 3, 2], strict=True))]
    )
    assert [s.tokens for s in batch] == [fresh(p, w) for p, w in zip(prompts, [4, 1, 3, 2], strict=True)]


def test_the_draft_has_a_prefix_cache_of_its_own() -> None:
    drafter = model_drafter()
    backend: Any = drafter.backend
    shared = list(range(32))
    drafter.propose([ask([*shared, 1], sequence_id=1)])
    before = backend.rows
    assert drafter.propose([ask([*shared, 2, 3], sequence_id=2)])[0].tokens == fresh([*shared, 2, 3])
    assert backend.rows - before == 2 + 3


def test_released_sequences_hold_nothing() -> None:
    drafter = model_drafter()
    drafter.propose([ask(PROMPT, sequence_id=1), ask([1, 2], sequence_id=2)])
    with pytest.raises(RuntimeError, match=r"still holds sequences \[1, 2\]"):
        drafter.check_invariants()
    drafter.release(1)
    drafter.release(2)
    drafter.release(3)
    drafter.check_invariants()
    assert drafter.kv.pool.available == drafter.kv.pool.num_blocks


def test_in_place_of_tokens_that_the_draft_lacks_it_reads_another_and_drafts_on() -> None:
    drafter = model_drafter(vocab_size=40)
    drafter.backend = KnownTokens(drafter.backend, 40, 7)
    answers = drafter.propose([ask([1, 2, 50], sequence_id=1), ask([1, 2], sequence_id=2)])
    known = model_drafter(vocab_size=40).propose([ask([1, 2, 7], sequence_id=1), ask([1, 2], sequence_id=2)])
    assert answers == known
    assert len(answers[0]) == 4


def test_a_draft_with_more_tokens_than_the_target_never_proposes_them() -> None:
    core = engine(drafter=model_drafter(vocab_size=90))
    assert texts(run(core, (PROMPT, greedy(40, ignore_eos=True))))[0] == alone(
        PROMPT, greedy(40, ignore_eos=True)
    )


def test_a_restricted_draft_proposes_only_allowed_tokens() -> None:
    allowed = {1, 2, 3, 60}
    drafter = model_drafter(vocab=sorted(allowed))
    params = SamplingParams(temperature=1.0, seed=1)
    for seed in range(10):
        request = DraftRequest(seed, [seed, 2], 1, 4, params, seed)
        assert set(drafter.propose([request])[0].tokens) <= allowed


def test_speculation_switched_off_asks_the_drafter_nothing() -> None:
    for params in (greedy(speculative=False), greedy(num_speculative_tokens=0)):
        drafter = model_drafter()
        core = engine(drafter=drafter)
        request = run(core, (PROMPT, params))[0]
        backend: Any = drafter.backend
        assert backend.passes == 0
        assert request.sequences[0].stats.speculation.num_spec_steps == 0


def test_a_request_can_lower_k_but_not_raise_it() -> None:
    for asked, expected in ((2, 2), (9, 4)):
        params = greedy(30, num_speculative_tokens=asked, ignore_eos=True)
        request = run(engine(drafter=model_drafter(), k=4), (PROMPT, params))[0]
        assert max(request.sequences[0].stats.per_step_drafted) == expected


class Scripted:
    """A drafter that records what it hears and answers as told."""

    max_context = None

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.heard: list[DraftRequest] = []
        self.admitted: list[int] = []
        self.released: list[int] = []
        self.resets = 0

    def admit(self, request: DraftRequest) -> None:
        self.admitted.append(request.sequence_id)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Speculation]:
        self.heard += [replace(request, tokens=list(request.tokens)) for request in requests]
        return [self.answer(request) for request in requests]

    def release(self, sequence_id: int) -> None:
        self.released.append(sequence_id)

    def reset(self) -> None:
        self.resets += 1

    def check_invariants(self) -> None:
        assert sorted(self.admitted) == sorted(self.released)

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.reset()


def test_a_drafter_hears_the_outcome_of_its_last_speculation() -> None:
    text = alone(PROMPT, greedy(30, ignore_eos=True))[0][0]

    def answer(request: DraftRequest) -> Speculation:
        done = len(request.tokens) - len(PROMPT)
        good = text[done : done + 2]
        return Speculation((*good, 63 if text[done + 2 : done + 3] != [63] else 62)[: request.wanted])

    drafter = Scripted(answer)
    run(engine(drafter=drafter, k=3), (PROMPT, greedy(30, ignore_eos=True)))
    assert drafter.heard[0].outcome is None
    for before, request in zip(drafter.heard, drafter.heard[1:], strict=False):
        assert request.tokens[: len(before.tokens)] == before.tokens
        assert request.outcome == Outcome(2, request.tokens[-1])
        assert len(request.tokens) == len(before.tokens) + 3


def test_longer_answers_are_cut_to_what_was_wanted() -> None:
    drafter = Scripted(lambda request: Speculation((1,) * 9))
    request = run(engine(drafter=drafter, k=3), (PROMPT, greedy(30)))[0]
    assert set(request.sequences[0].stats.per_step_drafted) <= {1, 2, 3}
    assert texts([request])[0] == alone(PROMPT, greedy(30))


def test_a_failing_drafter_costs_no_text(caplog: pytest.LogCaptureFixture) -> None:
    def answer(request: DraftRequest) -> Speculation:
        raise NumericsError("logit is nan")

    drafter = Scripted(answer)
    core = engine(drafter=drafter)
    assert texts(run(core, (PROMPT, greedy(10))))[0] == alone(PROMPT, greedy(10))
    assert drafter.resets > 0
    assert "logit is nan" in caplog.text


def test_every_sequence_is_admitted_and_released_once_also_when_cancelled() -> None:
    drafter = Scripted(lambda request: EMPTY)
    core = engine(drafter=drafter)
    for index in range(3):
        core.add(core.prepare(f"r{index}", PROMPT, greedy(20, n=2, ignore_eos=True)))
    for _ in range(3):
        core.step()
    core.cancel("r1")
    drain(core)
    assert sorted(drafter.admitted) == sorted(drafter.released) == list(range(6))


def test_ngrams_propose_what_followed_before() -> None:
    drafter = NgramDrafter(min_n=2, max_n=3)
    requests = [ask([1, 2, 3, 4, 5, 1, 2], 2, 1), ask([9, 8, 7], 2, 2)]
    assert [s.tokens for s in drafter.propose(requests)] == [(3, 4), ()]
    assert drafter.propose([ask([1, 2, 3, 4, 5, 1, 2, 3, 9, 9, 1, 2, 3], 3, 1)])[0].tokens == (9, 9, 1)
    assert drafter.stats() == {"num_proposals": 3, "num_empty": 1}
    drafter.release(1)
    drafter.release(2)
    drafter.check_invariants()


@pytest.mark.parametrize(
    "params", [greedy(60, ignore_eos=True), SamplingParams(temperature=0.6, seed=2, max_tokens=60)]
)
def test_ngrams_do_not_change_the_text(params: SamplingParams) -> None:
    core = engine(drafter=NgramDrafter(min_n=1))
    repetitive = [1, 2, 3, 1, 2, 3, 1, 2, 3]
    request = run(core, (repetitive, params))[0]
    assert texts([request])[0] == alone(repetitive, params)
    assert request.sequences[0].stats.speculation.num_draft_tokens > 0
