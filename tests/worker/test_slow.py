"""Workers that keep a round waiting: the engine waits a bounded time, and stops waiting where that does not pay."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sonoran.drafting.ssd import SsdDrafter
from sonoran.errors import WorkerError
from sonoran.ssd.messages import PROTOCOL_VERSION, Answer, Heartbeat, Speculate, Speculations, Welcome, encode
from sonoran.worker import client as client_module
from sonoran.worker.connection import Remote
from tests.engine.helpers import alone, engine, greedy, run
from tests.toy_backend import ToyBackend
from tests.worker.fake_worker import CONTEXT
from tests.worker.workers import connected, item, scripted


def test_an_engine_stops_waiting_for_a_slow_worker(address: str) -> None:
    """The worker of the reproduction: it answers every round after 0.9 of the heartbeat, with wrong tokens."""
    heartbeat_s = 0.5

    def reply(message: Any) -> list[bytes]:
        if isinstance(message, Heartbeat):
            return [encode(message)]
        if not isinstance(message, Speculate):
            return []
        time.sleep(0.9 * heartbeat_s)
        answers = [Answer(i.sequence, i.generation, True, "draft", [1, 1], [], []) for i in message.items]
        return [encode(Speculations(message.round, answers, 0.0, 0.0))]

    welcome = Welcome(PROTOCOL_VERSION, "f" * 64, "slow", CONTEXT, heartbeat_s)
    with scripted(address, reply, welcome) as heard, connected(Remote(address)) as client:
        core = engine(ToyBackend(), SsdDrafter(client, target_vocab=64))
        params = greedy(40, ignore_eos=True)
        request = run(core, ([3, 1, 4], params))[0]
        assert request.sequences[0].output_ids == alone([3, 1, 4], params)[0][0]
        assert sum(isinstance(message, Speculate) for message in heard) <= 3
        assert core.statistics()["drafter"]["given_up"] >= 1


def test_a_round_waits_a_bounded_time_whatever_heartbeat_the_worker_announces(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "LONGEST_WAIT_S", 0.3)
    welcome = Welcome(PROTOCOL_VERSION, "f" * 64, "silent", CONTEXT, 60.0)
    with scripted(address, lambda message: [], welcome), connected(Remote(address)) as client:
        begin = time.monotonic()
        assert client.speculate([item(3)]) is None
        assert time.monotonic() - begin < 20.0
        assert client.state == "silent"


@pytest.mark.parametrize("heartbeat_s", [0.0, 1e-9, 61.0, float("nan"), float("inf")])
def test_a_heartbeat_that_is_no_heartbeat_is_refused(address: str, heartbeat_s: float) -> None:
    welcome = Welcome(PROTOCOL_VERSION, "f" * 64, "odd", CONTEXT, heartbeat_s)
    with (
        scripted(address, lambda message: [], welcome),
        pytest.raises(WorkerError, match="introduces itself with nonsense"),
        connected(Remote(address)),
    ):
        pass
