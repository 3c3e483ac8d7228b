"""A worker in this process: the real speculator, the real messages, and nothing between calls."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from sonoran.drafting.ssd import SsdDrafter
from sonoran.engine.core import EngineCore
from sonoran.errors import CompatibilityError, ConfigError, WorkerError
from sonoran.llm import LLM
from sonoran.sampling.params import SamplingParams
from sonoran.ssd.messages import MAX_MESSAGE_BYTES, Hello, Item, Speculate
from sonoran.worker.client import DraftClient
from sonoran.worker.in_process import InProcessWorker
from sonoran.worker.session import Service, draft_service
from tests.engine.helpers import PATIENT, VOCAB, alone, engine, greedy, run, texts
from tests.toy_tokenizer import ToyTokenizer
from tests.worker.fake_worker import CONTEXT, FINGERPRINT, CountingSpeculator, fake_service
from tests.worker.local import toy_hello, toy_model
from tests.worker.workers import hello, item, prefill

PROMPTS = [[3, 1, 4, 1, 5], [2, 7, 1, 8], [9]]


def counting(**options: Any) -> tuple[InProcessWorker, CountingSpeculator]:
    worker = InProcessWorker(hello(), fake_service(options), passes=options.pop("at_most", None))
    speculator = worker.session.speculator
    assert isinstance(speculator, CountingSpeculator)
    return worker, speculator


def ssd(**settings: Any) -> tuple[EngineCore, InProcessWorker]:
    worker = InProcessWorker(toy_hello(**settings), draft_service(toy_model(noise=0.6)))
    return engine(drafter=SsdDrafter(worker, target_vocab=VOCAB, patience=PATIENT), max_num_seqs=4), worker


def test_every_run_is_the_same() -> None:
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=30)
    found = []
    for _ in range(2):
        core, worker = ssd(fan_out="uniform", budget=8, backup="draft")
        requests = run(core, *[(prompt, params) for prompt in PROMPTS])
        assert texts(requests) == [alone(prompt, params) for prompt in PROMPTS]
        counted = core.statistics()["speculative_decoding"]
        assert counted["num_cache_hits"] > 0
        found.append((counted["cache_hits_by_previous_origin"], counted["acceptance_histogram"]))
        stats = worker.worker_stats()
        assert stats is not None
        assert (stats["num_sequences"], stats["num_clients"]) == (0, 1)
    assert found[0] == found[1]


@pytest.mark.parametrize(("passes", "done"), [(None, 3), (5, 3), (2, 2), (0, 0)])
def test_the_draft_works_before_a_call_returns(passes: int | None, done: int) -> None:
    worker, speculator = counting(at_most=passes)
    assert worker.prefill(prefill())
    assert speculator.steps == done
    worker.passes = None
    reply = worker.speculate([item(3)])
    assert reply is not None
    assert reply.answers[0].tokens == [8, 9, 10, 11]
    assert speculator.steps == done + 3
    worker.free([1])
    assert speculator.sequences == {}
    worker.close()
    worker.close()
    assert worker.state == "down"


def test_a_worker_that_goes_and_comes_back_changes_no_text() -> None:
    core, worker = ssd()
    params = greedy(40, ignore_eos=True)
    requests = [core.prepare(f"r{i}", prompt, params) for i, prompt in enumerate(PROMPTS)]
    for request in requests:
        core.add(request)
    step = 0
    while core.busy:
        worker.state = "silent" if step in (5, 6) else "up"
        worker.epoch += step == 9
        core.step()
        step += 1
    assert texts(requests) == [alone(prompt, params) for prompt in PROMPTS]
    faults = core.statistics()["drafter"]
    assert faults["rounds_without_worker"] == 2
    assert faults["prefills"] == 2 * len(PROMPTS), "a new session is told everything again"


def test_what_a_worker_refuses_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    worker = InProcessWorker(toy_hello(), draft_service(toy_model()))
    assert worker.prefill(prefill(tokens=[1, 64]))
    assert "tokens outside the target's vocabulary of 64" in caplog.text
    assert worker.stats() == {
        "state": "up", "restarts": 0, "sessions": 1, "lost": 0,
        "silences": 0, "late_replies": 0, "garbage": 0, "refusals": 1,
    }  # fmt: skip
    reply = worker.speculate([item(2)])
    assert reply is not None
    assert not reply.answers[0].known


class Forgetful(CountingSpeculator):
    def speculate(self, message: Speculate) -> Any:
        raise ConfigError("no idea")


def test_a_round_that_is_refused_is_one_of_unknown_sequences(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    service = Service("forgetful", FINGERPRINT, CONTEXT, lambda told: Forgetful(told, {}))
    reply = InProcessWorker(hello(), service).speculate([item(3), item(5, sequence=2)])
    assert reply is not None
    assert [(a.sequence, a.known) for a in reply.answers] == [(1, False), (2, False)]
    assert "no idea" in caplog.text


def test_a_mistake_of_the_speculator_is_seen_where_it_happens() -> None:
    worker, _ = counting(raise_in_round=1)
    with pytest.raises(ZeroDivisionError):
        worker.speculate([item(3)])


def test_messages_arrive_as_over_a_socket() -> None:
    worker, speculator = counting()
    tokens = [1, 2, 3]
    worker.prefill(prefill(tokens=tokens))
    assert speculator.sequences[1] is not tokens
    with pytest.raises(WorkerError, match="exceeds"):
        worker.speculate([Item(1, 1, 3, [2**31] * (MAX_MESSAGE_BYTES // 4), 4, -1)])


@pytest.mark.parametrize(
    ("greeting", "text"),
    [
        (hello(version=99), "install the same version"),
        (hello(fingerprint="0" * 64), "vocabulary of the target"),
    ],
)
def test_a_draft_that_does_not_fit_is_refused(greeting: Hello, text: str) -> None:
    with pytest.raises(CompatibilityError, match=text):
        InProcessWorker(greeting, fake_service({}))


def test_it_can_be_used_and_traced_like_any_other() -> None:
    core, worker = ssd()
    as_client: DraftClient = worker
    assert as_client.welcome is not None
    with LLM.from_core(core, ToyTokenizer(VOCAB)) as llm:
        llm.start_trace()
        output = llm.generate([PROMPTS[0]], greedy(20))[0]
        lanes = llm.end_trace()
    assert output.outputs[0].token_ids == alone(PROMPTS[0], greedy(20))[0][0]
    assert {"reply", "trunk pass", "tree step"} <= {span.name for span in lanes["draft worker"]}
    assert worker.state == "down", "closing the engine closes its worker"
