"""The client against workers that die, stop, lag, talk nonsense, or are cut off: bounded waits, and back again."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sonoran.config import SpeculationSettings
from sonoran.errors import CompatibilityError, ConfigError, ModelError, SonoranError, WorkerError
from sonoran.sampling.params import SamplingParams
from sonoran.ssd.messages import (
    PROTOCOL_VERSION,
    Heartbeat,
    Prefill,
    Speculate,
    Speculations,
    Welcome,
    encode,
)
from sonoran.worker.client import WorkerClient
from sonoran.worker.connection import Remote
from tests.worker.fake_worker import FINGERPRINT, fake_service
from tests.worker.workers import (
    BEAT,
    Proxy,
    connected,
    free_port,
    hello,
    item,
    leftovers,
    local,
    prefill,
    runs,
    scripted,
    serving,
    wait_until,
)


def tokens_of(reply: Speculations | None) -> list[int] | None:
    """The tokens of a reply about one sequence; None when there is no reply or the sequence is unknown."""
    if reply is None or not reply.answers[0].known:
        return None
    return reply.answers[0].tokens


def rounds_at_once(client: WorkerClient, count: int = 1000) -> None:
    """Rounds without a worker cost nothing: a thousand of them take less than one heartbeat each would."""
    begin = time.monotonic()
    for _ in range(count):
        assert client.speculate([item(3)]) is None
    assert time.monotonic() - begin < count * BEAT / 10


def back_up(client: WorkerClient, epoch: int) -> None:
    wait_until(lambda: client.state == "up" and client.epoch >= epoch, "the worker is back")
    assert client.prefill(prefill())
    assert tokens_of(client.speculate([item(3)])) == [8, 9, 10, 11]


def test_a_worker_of_our_own_from_start_to_end(private_tmp: Path) -> None:
    seen: list[tuple[int, int]] = []
    client = WorkerClient(
        hello(settings=SpeculationSettings(num_speculative_tokens=3)), local(load_steps=3, load_step_s=0.1)
    )
    welcome = client.start(lambda done, total: seen.append((done, total)))
    try:
        assert (welcome.model, client.state, client.epoch) == ("fake", "up", 1)
        assert seen
        assert seen == sorted(seen)
        assert client.prefill(prefill())
        assert tokens_of(client.speculate([item(3)])) == [8, 9, 10, 11]
        client.free([1])
        assert tokens_of(client.speculate([item(4)])) is None
        stats = client.worker_stats()
        assert stats is not None
        assert (stats["rounds"], stats["settings"]) == (2, 3)
        pid = client.worker_pid
        assert pid is not None
    finally:
        client.close()
    client.close()
    assert not runs(pid)
    assert leftovers(private_tmp) == []
    assert client.speculate([item(3)]) is None
    assert client.prefill(prefill()) is False
    assert client.worker_stats() is None


@pytest.mark.parametrize("moment", ["idle", "in a round"])
def test_a_killed_worker_is_noticed_at_once_and_replaced(
    private_tmp: Path, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(local(5.0, slow_s=0.0 if moment == "idle" else 0.3)) as client:
        client.prefill(prefill())
        pid = client.worker_pid
        assert pid is not None
        if moment == "idle":
            os.kill(pid, signal.SIGKILL)
        else:
            threading.Timer(0.1, os.kill, (pid, signal.SIGKILL)).start()
        begin = time.monotonic()
        assert client.speculate([item(3)]) is None
        assert time.monotonic() - begin < 2.5, "the heartbeat is 5 s: a dead process must be noticed sooner"
        wait_until(lambda: client.epoch == 2, "a new worker is up")
        assert client.worker_pid != pid
        assert client.stats()["restarts"] == 1
        assert client.stats()["lost"] == 1
        assert len(leftovers(private_tmp)) == 1
        back_up(client, 2)
    assert leftovers(private_tmp) == []
    assert "signal 9" in caplog.text
    assert "is back" in caplog.text


def test_a_worker_that_keeps_dying_is_restarted_ever_more_slowly(private_tmp: Path) -> None:
    with connected(local(die_in_round=1)) as client:
        pauses = []
        for epoch in range(1, 4):
            wait_until(lambda epoch=epoch: client.epoch == epoch and client.state == "up", "it is up")
            client.speculate([item(3)])
            wait_until(lambda: client.state == "down", "it is down")
            pauses.append(client._connection.retry_at - client._connection._since)
        assert pauses == sorted(pauses)
        assert pauses[2] >= 2 * pauses[1] >= 4 * pauses[0] > 0


def test_a_stopped_worker_costs_one_deadline_and_goes_on_where_it_was(private_tmp: Path) -> None:
    with connected(local()) as client:
        client.prefill(prefill())
        pid = client.worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        assert client.speculate([item(3)]) is None
        assert BEAT <= time.monotonic() - begin < BEAT + 2.0
        assert client.state == "silent"
        rounds_at_once(client)
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: client.state == "up", "it answers again")
        assert (client.epoch, client.worker_pid) == (1, pid)
        assert client.stats()["late_replies"] == 1
        # It has read the question that came too late: what was told before still counts.
        assert tokens_of(client.speculate([item(4, token=20)])) == [21, 22, 23, 24]


def test_a_worker_that_is_stopped_for_long_begins_a_new_session(private_tmp: Path) -> None:
    with connected(local(0.05)) as client:
        pid = client.worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: client.state == "down", "it is given up")
        rounds_at_once(client)
        os.kill(pid, signal.SIGCONT)
        back_up(client, 2)
        assert client.worker_pid == pid


def test_a_worker_that_hangs_for_good_is_replaced(private_tmp: Path) -> None:
    place = local(0.05)
    with connected(type(place)(place.options, place.heartbeat_s, place.command, hung_after_s=0.5)) as client:
        pid = client.worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: client.worker_pid not in (None, pid), "another one was started", 20.0)
        assert not runs(pid)
        back_up(client, 2)


def test_an_idle_connection_notices_silence_and_its_end(private_tmp: Path) -> None:
    with connected(local(0.1)) as client:
        pid = client.worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: client.state == "silent", "silence is noticed without a round")
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: client.state == "up", "its end as well")
        assert client.stats()["silences"] == 1


def test_a_slow_worker_is_trusted_less_with_every_miss(address: str) -> None:
    options = {"slow_s": 3 * BEAT}
    with serving(fake_service(options), address), connected(Remote(address)) as client:
        client.prefill(prefill())
        gaps = []
        for base in range(3, 6):
            wait_until(lambda: client.state == "up", "it is trusted again")
            assert client.speculate([item(base)]) is None
            gaps.append(client._connection._trusted_at - time.monotonic())
        assert gaps[0] < gaps[1] < gaps[2]
        options["slow_s"] = 0.0
        wait_until(lambda: client.state == "up", "it is trusted again")
        assert tokens_of(client.speculate([item(6)])) is not None, "all late questions were read"


def test_long_forward_passes_are_no_silence(address: str) -> None:
    with (
        serving(fake_service({"pass_s": 0.3 * BEAT, "passes": 10}), address) as _,
        connected(Remote(address)) as client,
    ):
        client.prefill(prefill())
        for base in range(3, 6):
            assert tokens_of(client.speculate([item(base)])) is not None
        assert client.stats()["silences"] == 0


GARBAGE: dict[str, Callable[[Any], list[bytes]]] = {
    "random bytes": lambda message: [random.Random(1).randbytes(200)],
    "a wrong tag": lambda message: [b"\x81\xa4type\xa7dragons"],
    "a wrong type": lambda message: [encode(message)],
    "half a message": lambda message: [encode(Speculations(message.round, [], 0.0, 0.0))[:-3]],
    "nothing at all": lambda message: [b""],
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_costs_a_round_and_is_counted(
    address: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def reply(message: Any) -> list[bytes]:
        if isinstance(message, Heartbeat):
            return [encode(message)]
        return GARBAGE[kind](message) if isinstance(message, Speculate) else []

    with scripted(address, reply), connected(Remote(address)) as client:
        for _ in range(2):
            assert client.speculate([item(3)]) is None
            assert client.state == "up", "no deadline was missed"
        assert client.speculate([item(3)]) is None
        assert client.state == "down", "three in a row are enough"
        assert client.stats()["garbage"] == 3
        wait_until(lambda: client.epoch == 2, "it gets another chance")
    assert caplog.text.count("talks nonsense: a message") == 1


def test_replies_to_other_rounds_are_dropped(address: str) -> None:
    def reply(message: Any) -> list[bytes]:
        if isinstance(message, Heartbeat):
            return [encode(message)]
        if isinstance(message, Speculate):
            return [encode(Speculations(n, [], 0.0, 0.0)) for n in (message.round - 1, 10**6, message.round)]
        return []

    with scripted(address, reply), connected(Remote(address)) as client:
        for number in range(1, 4):
            answer = client.speculate([item(3)])
            assert answer is not None
            assert answer.round == number
        assert client.stats()["late_replies"] == 6


def test_a_worker_that_never_replies_but_lives_is_asked_ever_more_rarely(address: str) -> None:
    def reply(message: Any) -> list[bytes]:
        return [encode(message)] if isinstance(message, Heartbeat) else []

    with scripted(address, reply) as heard, connected(Remote(address)) as client:
        end = time.monotonic() + 8 * BEAT
        while time.monotonic() < end:
            client.speculate([item(3)])
            time.sleep(0.001)
        asked = sum(isinstance(message, Speculate) for message in heard)
        assert 1 <= asked <= 4


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"version": 7}, "engine version 7"), ({"fingerprint": "0" * 64}, "vocabulary of the target")],
)
@pytest.mark.parametrize("where", ["local", "remote"])
def test_who_does_not_fit_is_told_why(
    private_tmp: Path, address: str, changes: dict[str, Any], text: str, where: str
) -> None:
    with serving(fake_service({}), address):
        place = local() if where == "local" else Remote(address)
        with pytest.raises(CompatibilityError, match=text):
            WorkerClient(hello(**changes), place).start()
    assert leftovers(private_tmp) == []


@pytest.mark.parametrize(
    "field", [{"version": 99}, {"fingerprint": "x"}, {"heartbeat_s": -1.0}, {"context_length": 0}]
)
def test_a_welcome_that_makes_no_sense_is_not_believed(address: str, field: dict[str, Any]) -> None:
    values = {
        "version": PROTOCOL_VERSION,
        "fingerprint": FINGERPRINT,
        "model": "m",
        "context_length": 9,
        "heartbeat_s": BEAT,
    }
    welcome = Welcome(**{**values, **field})
    with scripted(address, lambda message: [], welcome), pytest.raises(SonoranError):
        WorkerClient(hello(), Remote(address)).start()


def test_a_new_worker_that_sees_less_is_not_used(address: str) -> None:
    with serving(fake_service({"context": 512}), address):
        client = WorkerClient(hello(), Remote(address))
        client.start()
    try:
        with serving(fake_service({"context": 64}), address):
            wait_until(lambda: "sees only 64 tokens instead of 512" in str(client.error), "it was looked at")
            assert client.state != "up"
            assert client.welcome is not None
            assert client.welcome.context_length == 512
    finally:
        client.close()


@pytest.mark.parametrize("kind", ["none", "tcp"])
def test_nobody_there_is_an_error_in_time(address: str, kind: str) -> None:
    where = address if kind == "none" else f"tcp://127.0.0.1:{free_port()}"
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=r"no draft worker at .*is it running"):
        WorkerClient(hello(), Remote(where, patience_s=0.2)).start()
    assert time.monotonic() - begin < 5.0


def test_addresses_beyond_this_machine_need_keys() -> None:
    with pytest.raises(ConfigError, match="needs keys"):
        WorkerClient(hello(), Remote("tcp://10.1.2.3:5757"))


def test_a_worker_that_cannot_load_is_explained(private_tmp: Path) -> None:
    with pytest.raises(WorkerError, match="the disk is on fire"):
        WorkerClient(hello(), local(die_while_loading=True)).start()
    place = local()
    with pytest.raises(ModelError, match=r"none\.gguf"):
        WorkerClient(hello(), type(place)({"model": str(private_tmp / "none.gguf")})).start()
    assert leftovers(private_tmp) == []


def test_a_remote_worker_that_is_restarted_is_told_everything_again(address: str) -> None:
    with serving(fake_service({}), address):
        client = WorkerClient(hello(), Remote(address))
        client.start()
        client.prefill(prefill())
    try:
        wait_until(lambda: client.speculate([item(3)]) is None and client.state != "up", "it is gone")
        rounds_at_once(client)
        with serving(fake_service({}), address):
            back_up(client, 2)
    finally:
        client.close()


def test_a_worker_that_forgot_us_is_greeted_again(address: str) -> None:
    with serving(fake_service({"raise_in_round": 1}), address), connected(Remote(address)) as client:
        client.prefill(prefill())
        assert tokens_of(client.speculate([item(3)])) is None
        wait_until(lambda: client.epoch == 2, "a new session began")
        assert client.stats()["refusals"] == 1


@pytest.mark.parametrize("how", ["holds back", "resets"])
def test_a_network_that_is_cut_costs_one_deadline_and_heals(how: str) -> None:
    port = free_port()
    proxy = Proxy(port)
    try:
        with (
            serving(fake_service({}), f"tcp://127.0.0.1:{port}"),
            connected(Remote(f"tcp://127.0.0.1:{proxy.port}")) as client,
        ):
            client.prefill(prefill())
            assert tokens_of(client.speculate([item(3)])) is not None
            proxy.open.clear()
            if how == "resets":
                proxy.reset()
            begin = time.monotonic()
            assert client.speculate([item(4)]) is None
            assert time.monotonic() - begin < BEAT + 2.0
            rounds_at_once(client)
            proxy.open.set()
            wait_until(lambda: client.state == "up", "the network is back", 20.0)
            assert client.prefill(prefill(generation=2))
            assert tokens_of(client.speculate([item(3, generation=2)])) == [8, 9, 10, 11]
    finally:
        proxy.close()


def test_what_ended_while_the_worker_was_silent_is_freed_afterwards(private_tmp: Path) -> None:
    with connected(local()) as client:
        for sequence in (1, 2, 3):
            client.prefill(prefill(sequence))
        pid = client.worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        assert client.speculate([item(3)]) is None
        client.free([1, 2])
        assert client.prefill(prefill(2)) is False
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: client.state == "up", "it answers again")
        wait_until(lambda: (client.worker_stats() or {}).get("sequences") == [3], "both are freed")


def test_prompts_that_are_too_long_to_send_are_refused_here(address: str) -> None:
    with serving(fake_service({}), address), connected(Remote(address)) as client:
        with pytest.raises(WorkerError, match="exceeds"):
            client.prefill(Prefill(1, 1, [2**31] * (2**22), 1, 0, SamplingParams()))
        back_up(client, 1)


def test_several_engines_share_a_worker(address: str) -> None:
    with (
        serving(fake_service({}), address),
        connected(Remote(address)) as one,
        connected(Remote(address), vocab_size=10) as two,
    ):
        for client in (one, two):
            assert client.prefill(prefill())
        assert tokens_of(one.speculate([item(3)])) == [8, 9, 10, 11]
        assert tokens_of(two.speculate([item(3)])) == [8, 9, 0, 1]
        stats = one.worker_stats()
        assert stats is not None
        assert stats["num_clients"] == 2
        two.close()
        wait_until(lambda: (one.worker_stats() or {}).get("num_clients") == 1, "the other one has left")


def test_threads_may_ask_for_statistics_while_rounds_run(address: str) -> None:
    with serving(fake_service({}), address), connected(Remote(address)) as client:
        client.prefill(prefill())
        found: list[Any] = []
        threads = [
            threading.Thread(target=lambda: [found.append(client.worker_stats()) for _ in range(5)])
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        base = 3
        while any(thread.is_alive() for thread in threads) or base < 50:
            assert tokens_of(client.speculate([item(base)])) is not None
            base += 1
        assert len(found) == 15
        assert any(entry is not None for entry in found)


def test_faults_are_logged_once_each(private_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "sonoran.worker")
    with connected(local()) as client:
        pid = client.worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        for _ in range(50):
            client.speculate([item(3)])
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: client.state == "up", "it answers again")
    assert caplog.text.count("is silent") == 1
    assert caplog.text.count("answers again") == 1
