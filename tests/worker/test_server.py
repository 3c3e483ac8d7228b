"""The worker's loop: replies first, drafting in turns, and no client can hurt the worker or another client."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sonoran.errors import ConfigError, NumericsError
from sonoran.ssd.messages import (
    HELLO_FIRST,
    PROTOCOL_VERSION,
    Bye,
    Free,
    Heartbeat,
    Hello,
    Item,
    Refusal,
    Speculate,
    Speculations,
    Stats,
    StatsRequest,
    Welcome,
)
from sonoran.worker.server import EVICTED_AFTER, Server
from sonoran.worker.session import Service
from tests.worker.fake_worker import CONTEXT, FINGERPRINT, CountingSpeculator, fake_service
from tests.worker.workers import BEAT, RawClient, hello, item, prefill, raw, serving, wait_until


class Workshop:
    """A service whose speculators can be watched; forward passes wait for ``permits`` if there are any."""

    def __init__(self, passes: int = 3, permits: threading.Semaphore | None = None) -> None:
        self.speculators: list[CountingSpeculator] = []
        self.order: list[int] = []
        workshop = self

        class Watched(CountingSpeculator):
            def work(self) -> Iterator[None]:
                for _ in range(passes):
                    if permits is not None:
                        permits.acquire()
                    workshop.order.append(workshop.speculators.index(self))
                    self.steps += 1
                    yield

        def open_one(said: Hello) -> CountingSpeculator:
            self.speculators.append(Watched(said, {}))
            return self.speculators[-1]

        self.service = Service("watched", FINGERPRINT, CONTEXT, open_one)


def ask(client: RawClient, round_number: int, *items: Item) -> Speculations:
    client.say(Speculate(round_number, list(items)))
    reply = client.hear()
    assert isinstance(reply, Speculations), reply
    assert reply.round == round_number
    return reply


def test_a_conversation(address: str) -> None:
    with serving(fake_service({}), address), raw(address, hello()) as client:
        welcome = client.hear()
        assert isinstance(welcome, Welcome)
        assert (welcome.model, welcome.context_length, welcome.heartbeat_s) == ("fake", CONTEXT, BEAT)
        client.say(prefill(tokens=[1, 2, 3]), Heartbeat(9))
        assert client.hear() == Heartbeat(9)
        answer = ask(client, 1, item(3, token=7)).answers[0]
        assert (answer.known, answer.tokens) == (True, [8, 9, 10, 11])
        client.say(StatsRequest())
        stats = client.hear()
        assert isinstance(stats, Stats)
        assert stats.values["sequences"] == [1]
        client.say(Free([1]))
        assert ask(client, 2, item(4)).answers[0].known is False


def test_a_question_waits_for_one_forward_pass_at_most(address: str) -> None:
    permits = threading.Semaphore(1)
    workshop = Workshop(passes=1000, permits=permits)
    with serving(workshop.service, address), raw(address, hello(), prefill()) as client:
        client.hear()
        wait_until(lambda: workshop.speculators and workshop.speculators[0].steps == 1, "a pass ran")
        # The second pass is under way and can only end once the question has been asked.
        client.say(Speculate(1, [item(3)]), Heartbeat(1))
        time.sleep(0.02)
        permits.release()
        assert isinstance(client.hear(), Speculations)
        assert client.hear() == Heartbeat(1)
        assert workshop.speculators[0].steps == 2
        permits.release(5000)


def test_clients_take_turns_by_forward_passes(address: str) -> None:
    permits = threading.Semaphore(0)
    workshop = Workshop(passes=100, permits=permits)
    with serving(workshop.service, address), raw(address, hello()) as one, raw(address, hello()) as two:
        one.hear(), two.hear()
        one.say(prefill())
        wait_until(lambda: any(s.prefills for s in workshop.speculators), "the first one was told")
        two.say(prefill())
        while not all(s.prefills for s in workshop.speculators):
            permits.release()
            time.sleep(0.01)
        begin = len(workshop.order) + 2
        permits.release(10)
        wait_until(lambda: len(workshop.order) >= begin + 8, "more passes ran")
        order = workshop.order[begin : begin + 8]
        permits.release(10_000)
    assert all(a != b for a, b in pairwise(order)), order


def test_work_is_abandoned_when_the_next_question_comes_and_begun_anew(address: str) -> None:
    workshop = Workshop(passes=10**9)
    with serving(workshop.service, address), raw(address, hello(), prefill()) as client:
        client.hear()
        for number in range(5):
            assert ask(client, number, item(3 + number)).answers[0].known
        wait_until(lambda: workshop.speculators[0].steps > 100, "drafting goes on")


def test_what_would_disturb_the_work_under_way_waits_for_its_end_or_the_next_question(address: str) -> None:
    permits = threading.Semaphore(1)
    workshop = Workshop(passes=3, permits=permits)
    with serving(workshop.service, address), raw(address, hello(), prefill(1)) as client:
        client.hear()
        speculator = workshop.speculators[0]
        wait_until(lambda: speculator.steps == 1, "the work has begun")
        client.say(Free([1]), prefill(2, generation=2), prefill(3))
        permits.release()
        wait_until(lambda: speculator.steps == 2, "another pass ran")
        assert sorted(speculator.sequences) == [1], "nothing changes under the work"
        permits.release()
        # The work ends, and the new prompts are read by another one.
        wait_until(lambda: sorted(speculator.sequences) == [2, 3], "it was done after the work")
        assert speculator.generations[2] == 2
        permits.release()
        wait_until(lambda: speculator.steps == 4, "the next work has begun")
        client.say(Free([2]))
        permits.release()
        client.say(Speculate(1, [item(3, sequence=2, generation=2), item(3, sequence=3)]))
        permits.release(1000)
        reply = client.hear()
        assert isinstance(reply, Speculations)
        assert [answer.known for answer in reply.answers] == [False, True]


def test_idle_it_does_nothing(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(passes=2)
    turns = 0
    advance = Server._advance

    def counted(server: Server) -> None:
        nonlocal turns
        turns += 1
        advance(server)

    monkeypatch.setattr(Server, "_advance", counted)
    with serving(workshop.service, address), raw(address, hello(), prefill()) as client:
        client.hear()
        wait_until(lambda: workshop.speculators[0].steps == 2, "the work is done")
        time.sleep(0.01)
        before = turns
        time.sleep(2.5 * BEAT)
        assert turns - before <= 4, "it must sleep until a message or the next heartbeat"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 99}, f"version {PROTOCOL_VERSION} of the protocol, the engine version 99"),
        ({"fingerprint": "a" * 64}, "vocabulary of the target .* is not that of .* fake"),
    ],
)
def test_who_does_not_fit_is_refused(address: str, changes: dict[str, Any], reason: str) -> None:
    with serving(fake_service({}), address), raw(address, hello(**changes)) as client:
        refusal = client.hear()
        assert isinstance(refusal, Refusal)
        assert re.search(reason, refusal.reason), refusal.reason
        client.say(Heartbeat(1))
        assert client.hear() == Refusal(HELLO_FIRST)


def test_nonsense_costs_its_sender_a_refusal_and_nobody_else_anything(address: str) -> None:
    nonsense = [b"", b"\xc1\xff", b"\x91" * 10_000, b"\x81\xa4type\xa5other", bytes(range(256))]
    with serving(fake_service({}), address), raw(address, hello(), prefill()) as good:
        good.hear()
        with raw(address, *nonsense) as bad:
            for _ in nonsense:
                assert isinstance(bad.hear(), Refusal)
            bad.say(hello())
            assert isinstance(bad.hear(), Welcome)
            for data in nonsense:
                bad.say(data)
                assert isinstance(bad.hear(), Refusal)
            bad.socket.send_multipart([b"two", b"parts"])
            refusal = bad.hear()
            assert isinstance(refusal, Refusal)
            assert "one part, not 2" in refusal.reason
            assert ask(good, 1, item(3)).answers[0].known


def test_too_long_a_message_ends_the_connection_only(address: str) -> None:
    with serving(fake_service({}), address), raw(address, hello(), prefill()) as good:
        good.hear()
        with raw(address, bytes(17 * 2**20)):
            assert ask(good, 1, item(3)).answers[0].known
        assert ask(good, 2, item(4)).answers[0].known


@pytest.mark.parametrize("error", [NumericsError("logits are not finite"), ZeroDivisionError("oh")])
@pytest.mark.parametrize("where", ["prefill", "speculate", "work", "free", "stats", "close"])
def test_whatever_fails_costs_one_client_an_answer(address: str, where: str, error: Exception) -> None:
    workshop = Workshop()

    def fail(*_: Any) -> Any:
        raise error

    with serving(workshop.service, address), raw(address, hello()) as other, raw(address, hello()) as client:
        other.hear(), client.hear()
        other.say(prefill())
        wait_until(lambda: any(s.prefills for s in workshop.speculators), "one was told of a sequence")
        for speculator in workshop.speculators:
            if not speculator.prefills:
                setattr(speculator, where, fail)
        said = {
            "prefill": prefill(),
            "speculate": Speculate(1, [item(3)]),
            "work": prefill(),
            "free": Free([1]),
            "stats": StatsRequest(),
            "close": hello(),
        }
        client.say(said[where])
        heard = client.hear()
        if where == "close":
            assert isinstance(heard, Welcome)
        elif where == "speculate":
            assert isinstance(heard, Speculations)
            assert [answer.known for answer in heard.answers] == [False]
            heard = client.hear()
        if where != "close":
            assert isinstance(heard, Refusal)
            assert str(error) in heard.reason
        assert ask(other, 1, item(3)).answers[0].known
        client.say(Heartbeat(4))
        foreseen = where == "close" or isinstance(error, NumericsError)
        assert client.hear() == (Heartbeat(4) if foreseen else Refusal(HELLO_FIRST))


def test_settings_that_the_speculator_refuses_are_explained(address: str) -> None:
    def refuse(_: Hello) -> CountingSpeculator:
        raise ConfigError("unknown speculation setting 'budge'")

    with serving(Service("m", FINGERPRINT, 8, refuse), address), raw(address, hello()) as client:
        assert client.hear() == Refusal("unknown speculation setting 'budge'")


def test_a_client_that_vanishes_is_evicted_and_one_that_speaks_is_not(address: str) -> None:
    workshop = Workshop()
    with serving(workshop.service, address, heartbeat_s=0.05), raw(address, hello()) as loyal:
        loyal.hear()
        with raw(address, hello(), prefill()) as gone:
            gone.hear()
        end = time.monotonic() + 0.05 * (EVICTED_AFTER + 20)
        while time.monotonic() < end and not workshop.speculators[1].closed:
            loyal.say(Heartbeat(1))
            assert loyal.hear() == Heartbeat(1)
            time.sleep(0.02)
        assert [s.closed for s in workshop.speculators] == [0, 1]


def test_time_that_the_worker_itself_slept_through_evicts_nobody(address: str) -> None:
    permits = threading.Semaphore(0)
    workshop = Workshop(passes=1, permits=permits)
    with serving(workshop.service, address, heartbeat_s=0.05), raw(address, hello(), prefill()) as client:
        client.hear()
        time.sleep(0.05 * (EVICTED_AFTER + 2))
        permits.release()
        client.say(Heartbeat(1))
        assert client.hear() == Heartbeat(1)


def test_goodbye_and_a_second_hello_free_what_was_there(address: str) -> None:
    workshop = Workshop()
    with serving(workshop.service, address), raw(address, hello(), hello()) as client:
        client.hear(), client.hear()
        assert [s.closed for s in workshop.speculators] == [1, 0]
        client.say(Bye(), Heartbeat(1))
        assert client.hear() == Refusal(HELLO_FIRST)
        assert [s.closed for s in workshop.speculators] == [1, 1]


def test_a_worker_that_stops_frees_every_client_and_its_socket(address: str) -> None:
    workshop = Workshop()
    with serving(workshop.service, address), raw(address, hello(), prefill()) as client:
        client.hear()
    assert workshop.speculators[0].closed == 1
    assert not Path(address.removeprefix("ipc://")).exists()
