"""Parameters that the engine itself has a part in: forbidden words, allowed tokens, what texts show, prompts' chances."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sonoran.errors import ConfigError
from sonoran.llm import LLM
from sonoran.sampling.params import SamplingParams
from tests.engine.helpers import alone, engine, greedy, model_drafter, run, texts
from tests.toy_backend import ToyBackend
from tests.toy_tokenizer import ToyTokenizer
from tests.worker.local import LocalDrafter, toy_model

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]
EOS = ToyTokenizer().eos_ids[0]


def test_words_that_are_forbidden_do_not_come_whatever_drafts() -> None:
    free = alone(PROMPT, greedy(40, ignore_eos=True))[0][0]
    pairs = tuple(dict.fromkeys(pairwise(free)))[:6]
    letters = ToyTokenizer().decode(free[:1])
    params = greedy(40, ignore_eos=True, bad_word_ids=pairs, bad_words=(letters,), logprobs=1)
    expected = alone(PROMPT, params)
    ids = expected[0][0]
    assert not set(pairwise(ids)) & set(pairs)
    assert free[0] not in ids
    for drafter in (model_drafter(), LocalDrafter(toy_model()), model_drafter(vocab=range(20))):
        assert texts(run(engine(drafter=drafter), (PROMPT, params)))[0] == expected


def test_a_pair_of_the_prompt_and_the_output_is_allowed() -> None:
    free = alone(PROMPT, greedy(4, ignore_eos=True))[0][0]
    params = greedy(4, ignore_eos=True, bad_word_ids=((PROMPT[-1], free[0]),))
    assert alone(PROMPT, params)[0][0][0] == free[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("allowed", [(3,), (5, 9, 11), (40, 41, 50)])
def test_only_allowed_tokens_come_whatever_drafts(allowed: tuple[int, ...], temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=20, allowed_token_ids=allowed)
    expected = alone(PROMPT, params)
    assert set(expected[0][0]) <= set(allowed) and len(expected[0][0]) == 20
    # One of the drafts has only the ids below 20.
    for drafter in (model_drafter(), LocalDrafter(toy_model()), model_drafter(vocab=range(20))):
        assert texts(run(engine(drafter=drafter), (PROMPT, params)))[0] == expected


def test_tokens_that_do_not_exist_are_refused() -> None:
    for params in ({"allowed_token_ids": [64]}, {"bad_word_ids": [[1, 64]]}):
        with pytest.raises(
            ConfigError, match=f"{next(iter(params))} names token 64; the largest token id is 63"
        ):
            engine().prepare("r", PROMPT, SamplingParams(**params))


def test_the_end_is_shown_on_request() -> None:
    free = alone(PROMPT, greedy(30, ignore_eos=True))[0]
    stop = free[1][10:13]
    ids, text, finish, reason = alone(PROMPT, greedy(30, ignore_eos=True, stop=stop))[0]
    with_it = alone(PROMPT, greedy(30, ignore_eos=True, stop=stop, include_stop_str_in_output=True))[0]
    assert with_it == (ids, text + stop, finish, reason)
    params = greedy(30, ignore_eos=True, stop_token_ids=(free[0][5],), include_stop_str_in_output=True)
    ended = alone(PROMPT, params)[0]
    assert ended[1] == ToyTokenizer().decode(ended[0]) and ended[2] == "stop"


@pytest.mark.parametrize("drafted", [False, True])
def test_chances_of_the_prompt_are_those_that_its_tokens_have_when_generated(drafted: bool) -> None:
    drafter = model_drafter() if drafted else None
    params = greedy(6, prompt_logprobs=3, logprobs=2, n=2, ignore_eos=True)
    target = ToyBackend(num_blocks=256)
    with LLM.from_core(engine(target, drafter=drafter, max_num_batched_tokens=20), ToyTokenizer()) as llm:
        prompt = [i % 63 for i in range(0, 250, 5)]  # longer than a pass
        llm.generate(prompt, greedy(2))  # part of it is in the prefix cache
        output = llm.generate(prompt, params)[0]
        assert output.metrics["num_cached_tokens"] == 0
        found = output.prompt_logprobs
        assert found is not None and found[0] is None and len(found) == len(prompt)
        for position in (1, 2, 19, 20, 21, 39, 40, 49):
            one = greedy(1, logprobs=3, allowed_token_ids=(prompt[position],))
            (expected,) = llm.generate(prompt[:position], one)[0].outputs[0].logprobs or ()
            assert found[position] == expected
        deltas = list(llm.deltas(prompt, params))
        assert deltas[0].prompt_logprobs == found
        assert all(delta.prompt_logprobs is None for delta in deltas[1:])
        plain = llm.generate(prompt, greedy(6, logprobs=2, n=2, ignore_eos=True))[0]
        assert plain.outputs == output.outputs and plain.prompt_logprobs is None


def test_a_snapshot_needs_no_pause_of_the_engine() -> None:
    with LLM.from_core(engine(drafter=LocalDrafter(toy_model())), ToyTokenizer()) as llm:
        llm.generate(PROMPT, greedy(20, ignore_eos=True))
        now, slow = llm.snapshot(), llm.statistics()
        assert "worker" in slow["drafter"] and "worker" not in now["drafter"]
        del slow["drafter"]["worker"]
        assert now == slow
