"""Engine, client, worker and speculator together: whatever becomes of the worker, the text is that of AR."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sonoran.config import SpeculationSettings
from sonoran.drafting.ssd import SsdDrafter
from sonoran.engine.core import EngineCore
from sonoran.sampling.params import SamplingParams
from sonoran.ssd.messages import PROTOCOL_VERSION, Answer, Hello, Item, Speculate, Speculations
from sonoran.worker.client import WorkerClient
from sonoran.worker.connection import Remote
from sonoran.worker.process import Local
from sonoran.worker.session import Service, draft_service
from tests.engine.helpers import PATIENT, VOCAB, alone, engine, greedy, run, texts
from tests.toy_backend import ToyBackend
from tests.toy_tokenizer import ToyTokenizer
from tests.worker.fake_worker import CONTEXT, FINGERPRINT, CountingSpeculator
from tests.worker.local import toy_model
from tests.worker.workers import BEAT, leftovers, serving, wait_until

TOY_COMMAND = (sys.executable, str(Path(__file__).with_name("toy_worker.py")))
PROMPTS = [[3, 1, 4, 1, 5], [2, 7, 1, 8], [9], list(range(30))]
PARAMS = [
    greedy(24),
    SamplingParams(temperature=1.0, seed=5, max_tokens=24),
    SamplingParams(temperature=0.8, top_k=8, seed=1, max_tokens=24, repetition_penalty=1.2),
]


@contextmanager
def ssd(place: Local | Remote, fingerprint: str = "toy", **settings: Any) -> Iterator[SsdDrafter]:
    values = SpeculationSettings(**settings)
    client = WorkerClient(
        Hello(PROTOCOL_VERSION, fingerprint, VOCAB, list(ToyTokenizer().eos_ids), values), place
    )
    client.start()
    drafter = SsdDrafter(client, target_vocab=VOCAB, patience=PATIENT)
    try:
        yield drafter
    finally:
        drafter.close()


def target() -> ToyBackend:
    """A target that leaves the draft some time, as real ones do."""
    backend = ToyBackend()
    backend.before_forward = lambda: time.sleep(0.01)
    return backend


def toy_worker(heartbeat_s: float = BEAT, **toy: Any) -> Local:
    return Local(toy, heartbeat_s=heartbeat_s, command=TOY_COMMAND)


def check_texts(core: EngineCore, between: Callable[[int], None] = lambda step: None) -> None:
    """Serve all prompts with all parameters at once; ``between`` is called before every step."""
    jobs = [(prompt, params) for prompt in PROMPTS for params in PARAMS]
    requests = [core.prepare(f"r{i}", prompt, params) for i, (prompt, params) in enumerate(jobs)]
    for request in requests:
        core.add(request)
    step = 0
    while core.busy:
        between(step)
        core.step()
        step += 1
    core.check_invariants()
    for job, request in zip(jobs, requests, strict=True):
        assert request.error is None
        assert texts([request])[0] == alone(*job)


def num_hits(core: EngineCore) -> int:
    return int(core.statistics()["speculative_decoding"]["num_cache_hits"])


@pytest.mark.parametrize("backup", ["draft", "none"])
def test_a_good_draft_in_a_worker_hits_and_changes_nothing(address: str, backup: str) -> None:
    with (
        serving(draft_service(toy_model(noise=0.6)), address),
        ssd(Remote(address), backup=backup) as drafter,
    ):
        core = engine(target(), drafter, max_num_seqs=4)
        check_texts(core)
        counted = core.statistics()["speculative_decoding"]
        assert counted["num_cache_hits"] > 0
        assert counted["tokens_per_round_on_hit"] > 1.0
        stats = core.statistics()["drafter"]
        assert stats["rounds_without_worker"] == stats["garbage_answers"] == 0
        assert stats["worker"]["num_sequences"] == 0, "what ended is freed"


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_both_rules_work_over_the_wire(address: str, verification: Any) -> None:
    with serving(draft_service(toy_model(noise=0.6)), address), ssd(Remote(address)) as drafter:
        core = engine(target(), drafter, verification=verification)
        params = SamplingParams(temperature=1.0, seed=5, max_tokens=40, verification=verification)
        run(core, *[(prompt, params) for prompt in PROMPTS])
        stats = drafter.stats()
        assert stats["garbage_answers"] == 0
        assert core.stats.speculation.num_accepted_draft_tokens > 0


@pytest.mark.parametrize("what", ["killed", "stopped"])
def test_a_worker_that_goes_in_the_middle_changes_no_text_and_is_used_again(
    private_tmp: Path, what: str
) -> None:
    with ssd(toy_worker(noise=0.6)) as drafter:
        client = drafter.client
        core = engine(target(), drafter, max_num_seqs=4)
        pid = client.worker_pid
        assert pid is not None

        def strike(step: int) -> None:
            if step == 8:
                os.kill(pid, signal.SIGKILL if what == "killed" else signal.SIGSTOP)

        check_texts(core, strike)
        assert drafter.stats()["rounds_without_worker"] > 0
        if what == "stopped":
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: client.state == "up", "there is a worker again")
        hits = num_hits(core)
        check_texts(core)
        assert num_hits(core) > hits
        assert drafter.stats()["connection"]["restarts"] == (what == "killed")
    assert leftovers(private_tmp) == []


def test_a_worker_that_comes_back_in_the_middle_is_filled_again(private_tmp: Path) -> None:
    with ssd(toy_worker(noise=0.6)) as drafter:
        client = drafter.client
        core = engine(target(), drafter, max_num_seqs=4)
        pid = client.worker_pid
        assert pid is not None
        told = 0

        def strike(step: int) -> None:
            nonlocal told
            if step == 6:
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda: client.epoch == 2, "another worker is up")
                told = drafter.stats()["prefills"]
            if step == 8:
                assert drafter.stats()["prefills"] >= told + 4, "what runs is told again"

        check_texts(core, strike)
        assert drafter.stats()["worker"]["hits"] > 0, "the new worker was of use"


class Hostile(CountingSpeculator):
    """Answers with every kind of rubbish, in turns with sense."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello, {})
        self.chance = random.Random(3)

    def speculate(self, message: Speculate) -> Speculations:
        reply = super().speculate(message)
        answers = [self.spoil(a, i) for a, i in zip(reply.answers, message.items, strict=True)]
        if self.chance.random() < 0.1:
            self.chance.shuffle(answers)
        if self.chance.random() < 0.1:
            answers = answers[: self.chance.randint(0, len(answers))]
        times = self.chance.choice([0.5, float("nan"), float("inf"), -1.0])
        return Speculations(message.round, answers, times, times)

    def spoil(self, answer: Answer, item: Item) -> Answer:
        random_tokens = [self.chance.randrange(VOCAB) for _ in range(item.wanted)]
        q = [[self.chance.randbytes(8), self.chance.randbytes(16)]] * item.wanted
        changes: dict[str, Any] = self.chance.choice(
            [
                {},
                {"tokens": random_tokens},
                {"tokens": random_tokens, "distributions": q},
                {"tokens": [2**63 - 1]},
                {"tokens": [-5] * item.wanted},
                {"tokens": [VOCAB] * item.wanted},
                {"tokens": [1] * 1000},
                {"sequence": answer.sequence + 1},
                {"generation": 0},
                {"known": False},
                {"origin": "none"},
                {"fan_out": [-(2**40)] * 3},
            ]
        )
        values = {name: getattr(answer, name) for name in answer.__struct_fields__}
        return Answer(**{**values, **changes})


def test_a_hostile_worker_changes_no_text(address: str) -> None:
    service = Service("hostile", FINGERPRINT, CONTEXT, Hostile)
    with serving(service, address), ssd(Remote(address), FINGERPRINT) as drafter:
        core = engine(target(), drafter, max_num_seqs=4)
        check_texts(core)
        stats = drafter.stats()
        assert stats["garbage_answers"] > 10
        assert stats["unknown_sequences"] > 0


def test_a_hostile_worker_cannot_break_the_rejection_rule(address: str) -> None:
    service = Service("hostile", FINGERPRINT, CONTEXT, Hostile)
    with serving(service, address), ssd(Remote(address), FINGERPRINT) as drafter:
        core = engine(target(), drafter, verification="rejection")
        params = SamplingParams(temperature=1.0, seed=5, max_tokens=40, verification="rejection")
        requests = run(core, *[(prompt, params) for prompt in PROMPTS])
        assert all(len(request.sequences[0].output_ids) > 0 for request in requests)
        assert drafter.stats()["garbage_answers"] > 10


def test_two_engines_share_a_worker(address: str) -> None:
    with (
        serving(draft_service(toy_model(noise=0.6)), address),
        ssd(Remote(address)) as one,
        ssd(Remote(address), fan_out="uniform", budget=4) as two,
    ):
        cores = [engine(target(), drafter) for drafter in (one, two)]
        params = greedy(40)
        requests = [core.prepare("r", PROMPTS[0], params) for core in cores]
        for core, request in zip(cores, requests, strict=True):
            core.add(request)
        while any(core.busy for core in cores):
            for core in cores:
                core.step()
        for request in requests:
            assert texts([request])[0] == alone(PROMPTS[0], params)
        assert all(num_hits(core) > 0 for core in cores)


def test_settings_reach_the_speculator(address: str) -> None:
    settings = {"fan_out": "uniform", "budget": 10, "backup": "none"}
    with serving(draft_service(toy_model()), address), ssd(Remote(address), **settings) as drafter:
        stats = drafter.client.worker_stats()
        assert stats is not None
        assert stats["fan_out"]["primary"] == [2, 2, 2, 2, 2]
        assert stats["budget"] == 10
