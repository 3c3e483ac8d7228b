"""What a client may ask of a worker is bounded: more is refused with the reason, and others are served meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from sonoran.config import MAX_SPECULATIVE_TOKENS, SpeculationSettings
from sonoran.engine.trace import MAX_SPANS
from sonoran.errors import ConfigError
from sonoran.sampling.params import SamplingParams
from sonoran.ssd.backup import random_proposal
from sonoran.ssd.messages import (
    MAX_FREED,
    MAX_SEQUENCES,
    Free,
    Heartbeat,
    Item,
    Prefill,
    Refusal,
    Speculate,
    Speculations,
    Stats,
    StatsRequest,
    Welcome,
    encode,
)
from sonoran.ssd.model import DraftModel
from sonoran.ssd.speculator import Speculator
from sonoran.ssd.suffixes import SuffixIndex
from sonoran.worker import server, session
from sonoran.worker.connection import Remote
from sonoran.worker.server import longest_message
from sonoran.worker.session import Service, draft_service
from tests.worker.fake_worker import CONTEXT, FINGERPRINT, CountingSpeculator, fake_service
from tests.worker.local import toy_hello, toy_model
from tests.worker.workers import RawClient, connected, hello, item, prefill, raw, serving, wait_until


def make_speculator(model: DraftModel, **settings: Any) -> Speculator:
    return Speculator(model, toy_hello(**settings))


def still_served(good: RawClient, number: int = 1) -> None:
    good.say(Speculate(number, [item(2 + number)]))
    reply = good.hear()
    assert isinstance(reply, Speculations)
    assert reply.answers[0].known


BEYOND: dict[str, Any] = {
    "tokens wanted": Speculate(1, [item(3, wanted=30_000_000)]),
    "tokens wanted, negative": Speculate(1, [item(3, wanted=-1)]),
    "accepted": Speculate(1, [Item(1, 1, 3, [7], 4, 10**9)]),
    "items": Speculate(1, [item(3, sequence=n) for n in range(MAX_SEQUENCES + 1)]),
    "freed": Free(list(range(MAX_FREED + 1))),
    "spans": StatsRequest(trace=MAX_SPANS + 1),
    "vocabulary": hello(vocab_size=10**9),
    "end tokens": hello(eos_ids=list(range(5000))),
    "fingerprint": hello(fingerprint="f" * 1000),
    "length": prefill(tokens=[1] * 4_000_000),
}


@pytest.mark.parametrize("what", list(BEYOND))
def test_a_message_beyond_a_bound_is_refused_with_the_reason(address: str, what: str) -> None:
    with serving(fake_service({}), address), raw(address, hello(), prefill()) as good:
        good.hear()
        with raw(address, hello(), BEYOND[what], Heartbeat(1)) as bad:
            assert isinstance(bad.hear(), Welcome)
            refusal = bad.hear()
            assert isinstance(refusal, Refusal)
            assert "makes no sense: Expected" in refusal.reason or "exceeds the" in refusal.reason
            assert bad.hear() == Heartbeat(1), "the client itself is served on"
        still_served(good)


def test_settings_beyond_a_bound_are_refused(address: str) -> None:
    data = msgspec.msgpack.decode(encode(hello()))
    data["settings"]["num_speculative_tokens"] = 10**9
    with serving(fake_service({}), address), raw(address, msgspec.msgpack.encode(data)) as bad:
        refusal = bad.hear()
        assert isinstance(refusal, Refusal)
        assert f"from 0 to {MAX_SPECULATIVE_TOKENS}" in refusal.reason


def test_a_sequence_longer_than_the_draft_can_see_is_refused(address: str) -> None:
    with serving(draft_service(toy_model()), address), raw(address, hello(fingerprint="toy")) as client:
        context = client.hear().context_length
        client.say(prefill(tokens=[1] * (context + 1)))
        refusal = client.hear()
        assert isinstance(refusal, Refusal)
        assert f"the draft can see {context}" in refusal.reason
        client.say(prefill(tokens=[1] * 3), Speculate(1, [Item(1, 1, 3, [7] * (context + 100), 4, -1)]))
        assert client.hear().answers[0].known is False, "nor can it grow beyond that"


def test_sequences_and_their_tokens_are_counted() -> None:
    model = toy_model()
    speculator = Speculator(model, toy_hello())
    for name in range(MAX_SEQUENCES):
        speculator.prefill(Prefill(name, 1, [1], 1, 0, SamplingParams()))
    with pytest.raises(ConfigError, match=f"may have {MAX_SEQUENCES} sequences"):
        speculator.prefill(Prefill(-1, 1, [1], 1, 0, SamplingParams()))
    speculator.prefill(Prefill(5, 2, [1], 1, 0, SamplingParams()))  # in place of itself
    speculator.close()
    long = [1] * model.context_length
    with pytest.raises(ConfigError, match="tokens; it has"):
        for name in range(200):
            speculator.prefill(Prefill(name, 1, long, 1, 0, SamplingParams()))
    assert 100 < name < 150
    speculator.close()
    assert model.kv.pool.available == model.kv.pool.num_blocks


def test_parameters_name_so_many_tokens_and_no_more() -> None:
    speculator = Speculator(toy_model(), toy_hello())
    params = SamplingParams(logit_bias=dict.fromkeys(range(70_000), 1.0))
    with pytest.raises(ConfigError, match="70000 tokens in its parameters"):
        speculator.prefill(Prefill(1, 1, [1], 1, 0, params))


def test_little_is_drafted_before_a_reply_however_many_sequences_miss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sonoran.ssd.speculator.MAX_JUST_IN_TIME", 10)
    speculator = Speculator(
        toy_model(), toy_hello(num_speculative_tokens=4, backup="draft", least_chance=0.0)
    )
    for name in range(8):
        speculator.prefill(Prefill(name, 1, [1, 2, 3], 3, 0, SamplingParams(temperature=0.0)))
    reply = speculator.speculate(Speculate(1, [item(3, sequence=name) for name in range(8)]))
    lengths = [len(answer.tokens) for answer in reply.answers]
    assert lengths == [4, 4, 0, 0, 0, 0, 0, 0]
    assert all(answer.known for answer in reply.answers)


def test_passes_are_bounded_however_many_sequences_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy_model(num_blocks=1000)
    speculator = Speculator(model, toy_hello(num_speculative_tokens=4, budget=8, least_chance=0.0))
    names = range(20)
    for name in names:
        speculator.prefill(Prefill(name, 1, [1, 2, 3], 3, 0, SamplingParams(temperature=0.0)))
    list(speculator.work())
    monkeypatch.setattr("sonoran.ssd.speculator.MAX_PASS_ROWS", 30)
    speculator.speculate(Speculate(1, [item(3, sequence=name) for name in names]))
    model.backend.row_counts.clear()  # type: ignore[attr-defined]
    list(speculator.work())
    counts = model.backend.row_counts  # type: ignore[attr-defined]
    assert max(counts) <= 30
    assert sum(counts) > 20 * 8, "all of them were drafted for"


def test_a_client_that_is_refused_again_and_again_is_spoken_of_once(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with serving(fake_service({}), address), raw(address) as client:
        for _ in range(50):
            client.say(hello(version=99))
            assert isinstance(client.hear(), Refusal)
    assert 1 <= caplog.text.count("is refused") <= 5


def test_proposals_without_a_model_are_no_longer_than_a_speculation() -> None:
    index = SuffixIndex([1, 2, 3, 1, 2])
    for propose in (lambda n: random_proposal(1, 0, n, 50), index.propose):
        assert len(propose(MAX_SPECULATIVE_TOKENS)) == MAX_SPECULATIVE_TOKENS
        with pytest.raises(ConfigError, match="at most 64 tokens, not 30000000"):
            propose(30_000_000)


class Slow(CountingSpeculator):
    """Answers after a while."""

    def speculate(self, message: Speculate) -> Speculations:
        time.sleep(0.05)
        self.options["order"].append(self.hello.vocab_size)
        return super().speculate(message)

    def work(self) -> Iterator[None]:
        return iter(())


def test_who_asks_for_much_waits_for_itself(address: str) -> None:
    order: list[int] = []
    service = Service("m", FINGERPRINT, CONTEXT, lambda said: Slow(said, {"order": order}))
    with (
        serving(service, address),
        raw(address, hello(vocab_size=10), prefill()) as greedy,
        raw(address, hello(vocab_size=20), prefill()) as modest,
    ):
        greedy.hear(), modest.hear()
        greedy.say(*(Speculate(n, [item(3)]) for n in range(40)))
        wait_until(lambda: order, "the first one was answered")
        for number in range(3):
            modest.say(Speculate(number, [item(3 + number)]))
            assert isinstance(modest.hear(), Speculations)
        assert order.count(10) <= 12, f"the queue of the other client went first: {order}"
        assert order.count(20) == 3


def test_what_waits_is_bounded(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "INBOX_MESSAGES", 5)
    service = Service("m", FINGERPRINT, CONTEXT, lambda said: Slow(said, {"order": []}))
    with serving(service, address), raw(address, hello(), prefill()) as client:
        client.hear()
        client.say(*(Speculate(n, [item(3)]) for n in range(20)))
        heard = [client.hear() for _ in range(20)]
        refusals = [message.reason for message in heard if isinstance(message, Refusal)]
        assert len(refusals) > 5
        assert all("too many messages wait" in reason for reason in refusals)


def test_one_process_cannot_take_all_places(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PLACES_PER_PEER", 3)
    with serving(fake_service({}), address), ExitStack() as stack:
        clients = [stack.enter_context(raw(address, hello())) for _ in range(3)]
        assert all(isinstance(client.hear(), Welcome) for client in clients)
        fourth = stack.enter_context(raw(address, hello()))
        refusal = fourth.hear()
        assert isinstance(refusal, Refusal)
        assert "takes 3 clients from one place" in refusal.reason
        clients[0].say(hello())
        assert isinstance(clients[0].hear(), Welcome), "a client that begins anew keeps its place"


def test_an_idle_client_makes_room_for_a_newcomer(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CLIENTS", 2)
    with serving(fake_service({}), address), raw(address, hello()) as idle, raw(address, hello()) as active:
        idle.hear(), active.hear()
        with raw(address, hello()) as newcomer:
            refusal = newcomer.hear()
            assert isinstance(refusal, Refusal)
            assert "has 2 clients at work" in refusal.reason
            monkeypatch.setattr(server, "IDLE_AFTER_S", 0.0)
            active.say(prefill())
            still_served(active)
            newcomer.say(hello())
            assert isinstance(newcomer.hear(), Welcome)
        still_served(active, 2)
        idle.say(Heartbeat(1))
        assert isinstance(idle.hear(), Refusal)


def test_a_real_speculator_serves_on_beside_one_that_wants_everything(address: str) -> None:
    greedy = hello(fingerprint="toy", settings=SpeculationSettings(num_speculative_tokens=64, backup="draft"))
    with serving(draft_service(toy_model()), address), raw(address, greedy, prefill()) as bad:
        bad.hear()
        bad.say(*(Speculate(n, [item(3, wanted=64)] * 100) for n in range(50)))
        with connected(Remote(address), fingerprint="toy") as client:
            assert client.prefill(prefill(tokens=[1, 2, 3]))
            reply = client.speculate([item(3)])
            assert reply is not None
            assert reply.answers[0].known


def test_the_longest_message_holds_the_longest_prompt() -> None:
    for context in (512, 32_768, 262_144):
        longest = Prefill(2**60, 2**60, [2**31 - 1] * context, 1, 2**64 - 1, SamplingParams())
        assert len(encode(longest)) < longest_message(context)


def test_a_client_frees_any_number_of_sequences(address: str) -> None:
    with serving(fake_service({}), address), connected(Remote(address)) as client:
        assert client.prefill(prefill(1))
        client.free(range(3 * MAX_FREED))

        def freed() -> bool:
            stats = client.worker_stats()
            return stats is not None and stats["sequences"] == []

        wait_until(freed, "the worker forgot them")
        wait_until(lambda: not client._pending_frees, "nothing is left to free")


def test_stats_with_a_trace_of_allowed_size_are_sent(address: str) -> None:
    with serving(draft_service(toy_model()), address), raw(address, hello(fingerprint="toy")) as client:
        client.hear()
        client.say(StatsRequest(trace=MAX_SPANS), StatsRequest(trace=0))
        assert isinstance(client.hear(), Stats)
        assert client.hear().values["spans"] == []
