"""Events of rounds and deltas of requests: together they are what the whole output says, in every mode."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import Any

import pytest

from sonoran.drafting.ngram import NgramDrafter
from sonoran.errors import NumericsError
from sonoran.llm import LLM
from sonoran.sampling.params import SamplingParams
from sonoran.types import RequestDelta, RoundEvent
from tests.engine.helpers import engine, greedy, model_drafter
from tests.toy_backend import ToyBackend
from tests.toy_tokenizer import ToyTokenizer
from tests.worker.local import LocalDrafter, toy_model

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]


ENGINES = {
    "ar": lambda: engine(k=0),
    "sd": lambda: engine(drafter=model_drafter()),
    "ngram": lambda: engine(drafter=NgramDrafter(min_n=1, max_n=3)),
    "ssd": lambda: engine(drafter=LocalDrafter(toy_model())),
}


def put_together(deltas: list[RequestDelta]) -> dict[int, tuple[list[int], str, list[Any], Any, Any]]:
    texts: dict[int, Any] = defaultdict(lambda: ([], "", [], None, None))
    for delta in deltas:
        for sample in delta.samples:
            ids, text, logprobs, finish, _ = texts[sample.index]
            assert finish is None, "nothing comes after the end"
            texts[sample.index] = (
                ids + list(sample.token_ids),
                text + sample.text,
                logprobs + list(sample.logprobs or ()),
                sample.finish_reason,
                sample.stop_reason,
            )
    return texts


@pytest.mark.parametrize("mode", ENGINES)
@pytest.mark.parametrize(
    "params",
    [
        greedy(40, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=1.0, seed=3, max_tokens=40, n=3, ignore_eos=True),
        SamplingParams(temperature=1.0, seed=4, max_tokens=60, stop=("a", "be"), logprobs=0),
    ],
)
def test_deltas_put_together_are_the_whole_output(mode: str, params: SamplingParams) -> None:
    with LLM.from_core(ENGINES[mode](), ToyTokenizer()) as llm:
        whole = llm.generate(PROMPT, params)[0]
        deltas = list(llm.deltas(PROMPT, params))
        together = put_together(deltas)
        for output in whole.outputs:
            ids, text, logprobs, finish, stop = together[output.index]
            assert (ids, text, finish, stop) == (
                output.token_ids,
                output.text,
                output.finish_reason,
                output.stop_reason,
            )
            assert logprobs == (output.logprobs or [])
        assert [delta.finished for delta in deltas] == [False] * (len(deltas) - 1) + [True]
        assert deltas[-1].metrics["num_generated_tokens"] == sum(len(o.token_ids) for o in whole.outputs)
        llm.check_invariants()


@pytest.mark.parametrize("mode", ENGINES)
def test_a_delta_says_where_its_tokens_came_from(mode: str) -> None:
    with LLM.from_core(ENGINES[mode](), ToyTokenizer()) as llm:
        deltas = list(llm.deltas(PROMPT, greedy(60, ignore_eos=True)))
    origins: list[str] = []
    for delta in deltas:
        (sample,) = delta.samples
        assert sample.round is not None and sample.round.emitted == sample.token_ids
        assert len(sample.round.origins) == len(sample.token_ids)
        assert (
            sample.round.proposed[: sample.round.accepted][: len(sample.token_ids)]
            == (sample.token_ids[: sample.round.accepted])
        )
        origins += sample.round.origins
    speculation = deltas[-1].metrics.get("speculative_decoding")
    drafted = len(origins) - origins.count("target")
    assert drafted == (speculation["num_accepted_draft_tokens"] if speculation else 0)
    proposals = {s.round.origin for d in deltas for s in d.samples if s.round is not None}
    assert proposals >= {"ar": {"none"}, "sd": {"draft"}, "ngram": {"ngram"}, "ssd": {"primary"}}[mode]
    assert ("cache" in origins) == (mode == "ssd")


def test_a_round_is_told_once_with_everybody_in_it() -> None:
    events: list[RoundEvent] = []
    with LLM.from_core(engine(drafter=model_drafter()), ToyTokenizer()) as llm:
        end = llm.observe(events.append)
        llm.generate([PROMPT, PROMPT[:3]], greedy(20, ignore_eos=True))
        rounds = llm.statistics()["num_rounds"]
        end()
        llm.generate(PROMPT, greedy(4))
    assert len(events) == rounds
    assert max(len(event.samples) for event in events) == 2
    assert sum(len(sample.emitted) for event in events for sample in event.samples) == 40
    assert sum(sample.num_prompt_tokens for event in events for sample in event.samples) == 11
    assert sum(event.num_rows for event in events) >= 40
    for event in events:
        assert event.begin_s <= event.drafted_s <= event.packed_s <= event.ran_s <= event.end_s


def test_nothing_is_made_when_nobody_listens() -> None:
    core = engine(drafter=model_drafter())
    with LLM.from_core(core, ToyTokenizer()) as llm:
        llm.generate(PROMPT, greedy(8))
        assert core.event is None and not core.watched
        list(llm.deltas(PROMPT, greedy(8)))
        llm.generate(PROMPT, greedy(8))
        assert core.event is None


def test_an_observer_that_fails_hears_no_more_and_disturbs_nobody() -> None:
    calls = []

    def fail(event: RoundEvent) -> None:
        calls.append(event)
        raise ValueError("broken")

    with LLM.from_core(engine(), ToyTokenizer()) as llm:
        expected = llm.generate(PROMPT, greedy(8))[0].outputs
        llm.observe(fail)
        assert llm.generate(PROMPT, greedy(8))[0].outputs == expected
    assert len(calls) == 1


def test_an_error_ends_the_deltas() -> None:
    target = ToyBackend()

    def fail() -> None:
        if target.passes == 3:
            raise NumericsError("row 0 has nan")

    target.before_forward = fail
    with LLM.from_core(engine(target), ToyTokenizer()) as llm:
        got = []
        with pytest.raises(NumericsError):
            for delta in llm.deltas(PROMPT, greedy(20, ignore_eos=True)):
                got.append(delta)
        assert got and not got[-1].finished


def test_a_cancelled_request_tells_what_was_held_back() -> None:
    go, started = threading.Event(), threading.Event()
    target = ToyBackend()

    def hold() -> None:
        started.set()
        go.wait(0.05)

    target.before_forward = hold
    with LLM.from_core(engine(target), ToyTokenizer()) as llm:
        deltas = []
        for delta in llm.deltas(
            PROMPT, greedy(500, ignore_eos=True, stop=("".join(map(chr, range(97, 123))),))
        ):
            deltas.append(delta)
            if len(deltas) == 3:
                llm.cancel(delta.request_id)
        together = put_together(deltas)[0]
        assert together[3] == "cancelled"
        assert together[1] == ToyTokenizer().decode(together[0])


def test_asyncio_readers_get_the_same_and_closing_cancels() -> None:
    async def read(llm: LLM) -> list[RequestDelta]:
        request = llm.prepare(PROMPT, greedy(30, ignore_eos=True), request_id="whole")
        return [delta async for delta in llm.deltas_async(request)]

    async def leave(llm: LLM) -> None:
        stream = llm.deltas_async(llm.prepare(PROMPT, greedy(400, ignore_eos=True)))
        async for _ in stream:
            break
        await stream.aclose()

    with LLM.from_core(engine(drafter=model_drafter()), ToyTokenizer()) as llm:
        expected = llm.generate(PROMPT, greedy(30, ignore_eos=True))[0].outputs[0].token_ids
        assert put_together(asyncio.run(read(llm)))[0][0] == expected
        asyncio.run(leave(llm))
        assert llm.statistics()["num_running"] == 0
        llm.check_invariants()
