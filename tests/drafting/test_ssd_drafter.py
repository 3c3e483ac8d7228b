"""The drafter's bookkeeping: what it tells a worker, what it makes of answers, and what it counts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sonoran.drafting.ssd import SsdDrafter
from sonoran.engine.drafter import DraftAnswer, DraftRequest, DraftRound
from sonoran.errors import WorkerError
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import EMPTY
from sonoran.ssd.messages import Answer, Item, Prefill, Speculations, Welcome
from sonoran.types import Outcome

PROMPT = [3, 1, 4]
VOCAB = 64
Reply = Callable[[int, Item], Answer]


def hit(round_number: int, item: Item) -> Answer:
    return Answer(item.sequence, item.generation, True, "primary", [5] * item.wanted, [], [4, 2])


def miss(round_number: int, item: Item) -> Answer:
    return Answer(item.sequence, item.generation, True, "draft", [6], [], [4, 2])


def unknown(round_number: int, item: Item) -> Answer:
    return Answer(item.sequence, item.generation, False, "none", [], [], [])


class Client:
    """Plays a connection and the worker behind it; keeps everything that it was told."""

    def __init__(self, reply: Reply = hit) -> None:
        self.state, self.epoch = "up", 1
        self.welcome: Welcome | None = Welcome(1, "f", "m", 100, 1.0)
        self.reply = reply
        self.prefills: list[Prefill] = []
        self.rounds: list[list[Item]] = []
        self.freed: list[int] = []
        self.whole_reply: Callable[[Speculations], Speculations | None] = lambda reply: reply
        self.closed = False

    def prefill(self, message: Prefill) -> bool:
        if self.state == "up":
            self.prefills.append(message)
        return self.state == "up"

    def free(self, sequences: Sequence[int]) -> None:
        self.freed += sequences

    def speculate(self, items: Sequence[Item]) -> Speculations | None:
        self.rounds.append(list(items))
        answers = [self.reply(len(self.rounds), item) for item in items]
        return self.whole_reply(Speculations(len(self.rounds), answers, 2.0, 0.5))

    def worker_stats(self) -> dict[str, Any] | None:
        return {"passes": 7}

    def stats(self) -> dict[str, Any]:
        return {"state": self.state}

    def close(self) -> None:
        self.closed = True


def drafter(client: Client) -> SsdDrafter:
    return SsdDrafter(client, target_vocab=VOCAB)  # type: ignore[arg-type]


def ask(tokens: list[int], outcome: Outcome | None = None, sequence: int = 0, **params: Any) -> DraftRequest:
    values = replace(SamplingParams(temperature=0.0), **params)
    return DraftRequest(sequence, tokens, len(PROMPT), 3, values, 17, outcome)


def propose(d: SsdDrafter, tokens: list[int], outcome: Outcome | None = None, **more: Any) -> tuple[int, ...]:
    return d.propose([ask(tokens, outcome, **more)])[0].tokens


def test_a_sequence_is_told_once_and_then_what_is_new() -> None:
    client = Client()
    d = drafter(client)
    d.admit(ask(PROMPT, stop=("x",), logit_bias={3: 1.0}, temperature=0.5))
    told = client.prefills[0]
    assert (told.tokens, told.prompt_length, told.seed) == (PROMPT, 3, 17)
    assert told.params == SamplingParams(temperature=0.5, stop=("x",), logit_bias={3: 1.0})
    assert propose(d, [*PROMPT, 9]) == (5, 5, 5)
    assert propose(d, [*PROMPT, 9, 5, 5, 8], Outcome(2, 8)) == (5, 5, 5)
    # A round with K = 0 in between, or preemption: no outcome.
    assert propose(d, [*PROMPT, 9, 5, 5, 8, 1, 2], None) == (5, 5, 5)
    items = [round_items[0] for round_items in client.rounds]
    assert [(i.base, i.tokens, i.accepted) for i in items] == [
        (3, [9], -1),
        (4, [5, 5, 8], 2),
        (7, [1, 2], -1),
    ]
    assert {i.generation for i in items} == {told.generation}
    assert len(client.prefills) == 1


def test_an_outcome_that_does_not_fit_what_is_new_is_not_passed_on() -> None:
    client = Client()
    d = drafter(client)
    d.admit(ask(PROMPT))
    propose(d, [*PROMPT, 9])
    propose(d, [*PROMPT, 9, 1, 2, 3, 4], Outcome(1, 4))
    assert client.rounds[-1][0].accepted == -1


def test_an_unknown_sequence_is_told_again_under_a_new_generation() -> None:
    client = Client(unknown)
    d = drafter(client)
    d.admit(ask(PROMPT))
    assert propose(d, [*PROMPT, 9]) == ()
    assert [p.tokens for p in client.prefills] == [PROMPT, [*PROMPT, 9]]
    assert client.prefills[1].generation > client.prefills[0].generation
    client.reply = hit
    assert propose(d, [*PROMPT, 9, 8]) == (5, 5, 5)
    assert client.rounds[-1][0].base == 4
    assert d.stats()["unknown_sequences"] == 1


def test_a_worker_that_will_not_hear_of_a_sequence_is_told_ever_more_rarely() -> None:
    client = Client(unknown)
    d = drafter(client)
    tokens = list(PROMPT)
    for _ in range(200):
        tokens.append(1)
        assert propose(d, tokens) == ()
    assert 4 <= len(client.prefills) <= 12
    assert len(client.rounds) <= len(client.prefills)


def test_a_new_session_is_told_everything_and_asked_one_round_later() -> None:
    client = Client()
    d = drafter(client)
    for sequence in (1, 2):
        d.admit(ask(PROMPT, sequence=sequence))
    client.epoch = 2
    requests = [ask([*PROMPT, 9], sequence=1), ask([*PROMPT, 8], sequence=2)]
    assert d.propose(requests) == [EMPTY, EMPTY]
    assert client.rounds == []
    assert [(p.sequence, p.tokens) for p in client.prefills[2:]] == [(1, [*PROMPT, 9]), (2, [*PROMPT, 8])]
    d.propose([ask([*PROMPT, 9, 7], Outcome(0, 7), sequence=1)])
    assert (client.rounds[0][0].tokens, client.rounds[0][0].accepted) == ([7], -1)


@pytest.mark.parametrize("state", ["silent", "down", "connecting"])
def test_without_a_worker_nothing_is_asked_and_nothing_is_lost(state: str) -> None:
    client = Client()
    d = drafter(client)
    d.admit(ask(PROMPT))
    propose(d, [*PROMPT, 9])
    client.state = state
    assert propose(d, [*PROMPT, 9, 5, 8], Outcome(1, 8)) == ()
    assert len(client.rounds) == 1
    d.admit(ask(PROMPT, sequence=1))
    client.state = "up"
    assert propose(d, [*PROMPT, 9, 5, 8, 4], Outcome(0, 4)) == (5, 5, 5)
    item = client.rounds[-1][0]
    assert (item.base, item.tokens, item.accepted) == (4, [5, 8, 4], -1)
    assert propose(d, [*PROMPT, 2], sequence=1) == ()
    assert client.prefills[-1].sequence == 1
    assert d.stats()["rounds_without_worker"] == 1


def test_after_a_reply_that_was_lost_the_worker_is_not_given_an_outcome() -> None:
    client = Client()
    d = drafter(client)
    d.admit(ask(PROMPT))
    client.whole_reply = lambda reply: None
    assert propose(d, [*PROMPT, 9]) == ()
    client.whole_reply = lambda reply: reply
    assert propose(d, [*PROMPT, 9, 8], Outcome(0, 8)) == (5, 5, 5)
    item = client.rounds[-1][0]
    assert (item.base, item.tokens, item.accepted) == (4, [8], -1)
    assert d.stats()["rounds_without_reply"] == 1


def bad(**changes: Any) -> Reply:
    def reply(round_number: int, item: Item) -> Answer:
        values = {
            "sequence": item.sequence,
            "generation": item.generation,
            "known": True,
            "origin": "primary",
            "tokens": [5],
            "distributions": [],
            "fan_out": [],
        }
        return Answer(**{**values, **changes})

    return reply


@pytest.mark.parametrize(
    "reply",
    [bad(tokens=[5] * 4), bad(tokens=[VOCAB]), bad(tokens=[-1]), bad(sequence=9), bad(generation=99)],
)
def test_garbage_about_one_sequence_spares_the_others(reply: Reply, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(lambda n, item: reply(n, item) if item.sequence == 1 else hit(n, item))
    d = drafter(client)
    for sequence in (1, 2):
        d.admit(ask(PROMPT, sequence=sequence))
    tokens = list(PROMPT)
    for round_number in range(3):
        tokens.append(9)
        outcome = Outcome(0, 9) if round_number else None
        found = d.propose([ask(tokens, outcome, sequence=1), ask(tokens, outcome, sequence=2)])
        assert [s.tokens for s in found] == [(), (5, 5, 5)]
        assert client.rounds[-1][0].accepted == -1
    assert d.stats()["garbage_answers"] == 3
    assert caplog.text.count("nonsense") == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda reply: Speculations(reply.round, [], 0.0, 0.0),
        lambda reply: Speculations(reply.round, reply.answers * 2, 0.0, 0.0),
    ],
    ids=["none", "twice"],
)
def test_a_reply_of_the_wrong_length_is_dropped(change: Any) -> None:
    client = Client()
    client.whole_reply = change
    d = drafter(client)
    d.admit(ask(PROMPT))
    assert propose(d, [*PROMPT, 9]) == ()
    assert d.stats()["garbage_answers"] == 1


def test_impossible_times_are_not_added() -> None:
    client = Client()
    client.whole_reply = lambda reply: Speculations(reply.round, reply.answers, float("nan"), -1.0)
    d = drafter(client)
    d.admit(ask(PROMPT))
    assert propose(d, [*PROMPT, 9]) == (5, 5, 5)
    assert d.last_round is not None
    assert (d.last_round.hidden_s, d.last_round.exposed_s) == (0.0, 0.0)
    assert (d.faults.garbage_times, d.faults.garbage_answers) == (1, 0)


def test_distributions_are_required_under_the_rejection_rule() -> None:
    d = drafter(Client())
    d.admit(ask(PROMPT, verification="rejection"))
    assert propose(d, [*PROMPT, 9], verification="rejection") == ()


def test_a_prompt_that_cannot_be_sent_is_decoded_without_a_draft(caplog: pytest.LogCaptureFixture) -> None:
    client = Client()

    def refuse(message: Prefill) -> bool:
        raise WorkerError("a message of 17000000 bytes exceeds the limit")

    client.prefill = refuse  # type: ignore[method-assign]
    d = drafter(client)
    d.admit(ask(PROMPT))
    assert propose(d, [*PROMPT, 9]) == ()
    assert "17000000" in caplog.text
    assert d.faults.prefills == d.faults.garbage_answers == 0


def last_round(d: SsdDrafter) -> DraftRound:
    assert d.last_round is not None
    return d.last_round


def test_the_engine_hears_where_every_speculation_came_from() -> None:
    client = Client(miss)
    d = drafter(client)
    d.admit(ask(PROMPT))
    tokens = [*PROMPT, 9]
    propose(d, tokens)
    assert last_round(d).answers == {0: DraftAnswer("draft", None, (4, 2))}
    assert not last_round(d).hit
    client.reply = hit
    tokens += [6, 8]
    propose(d, tokens, Outcome(1, 8))
    assert last_round(d).answers == {0: DraftAnswer("primary", "draft", (4, 2))}
    assert last_round(d).hit
    tokens += [1, 2]
    propose(d, tokens, None)  # a round with K = 0 in between: no outcome was looked up
    assert last_round(d).answers == {0: DraftAnswer("primary", None, (4, 2))}
    assert (last_round(d).hidden_s, last_round(d).exposed_s) == (0.002, 0.0005)
    client.state = "down"
    propose(d, [*tokens, 3], Outcome(0, 3))
    assert d.last_round is None, "nobody was asked"


def test_waiting_is_timed_whether_there_is_a_reply_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 0.0005, 0.1, 0.1, 0.12])
    monkeypatch.setattr("sonoran.drafting.ssd.time.perf_counter", lambda: next(clock))
    client = Client()
    d = drafter(client)
    d.admit(ask(PROMPT))
    propose(d, [*PROMPT, 9])
    assert last_round(d).waited_s == pytest.approx(0.0005)
    client.whole_reply = lambda reply: None
    propose(d, [*PROMPT, 9, 8], Outcome(0, 8))
    assert last_round(d).waited_s == pytest.approx(0.02)
    assert last_round(d).answers == {}
    assert not last_round(d).hit


def test_statistics_are_faults_the_connection_and_the_worker() -> None:
    d = drafter(Client())
    d.admit(ask(PROMPT))
    propose(d, [*PROMPT, 9])
    assert d.stats() == {
        "rounds": 1,
        "rounds_without_worker": 0,
        "rounds_without_reply": 0,
        "given_up": 0,
        "prefills": 1,
        "unknown_sequences": 0,
        "garbage_answers": 0,
        "garbage_times": 0,
        "connection": {"state": "up"},
        "worker": {"passes": 7},
    }


def test_release_reset_and_close_reach_the_worker() -> None:
    client = Client()
    d = drafter(client)
    for sequence in (1, 2, 3):
        d.admit(ask(PROMPT, sequence=sequence))
    d.release(2)
    d.release(99)
    assert client.freed == [2]
    with pytest.raises(RuntimeError, match=r"\[1, 3\]"):
        d.check_invariants()
    d.reset()
    d.check_invariants()
    assert client.freed == [2, 1, 3]
    assert d.max_context == 100
    d.close()
    assert client.closed


def test_nothing_is_logged_while_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    d = drafter(Client())
    d.admit(ask(PROMPT))
    propose(d, [*PROMPT, 9])
    assert caplog.text == ""


def test_a_prompt_that_the_draft_cannot_see_whole_is_not_sent() -> None:
    client = Client()
    d = drafter(client)
    d.admit(ask([1] * 100))
    d.admit(ask([1] * 101, sequence=1))
    assert [message.sequence for message in client.prefills] == [0]
    d.release(0)
    d.release(1)
    d.check_invariants()
