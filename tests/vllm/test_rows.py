"""Rows are known by their history, whatever the batch does between two steps: a batch is played by hypothesis."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonoran.types import Outcome
from sonoran.vllm.rows import Rows, Step, Tracked

WIDTH = 256
KEEP = 6


@dataclass(eq=False)
class Request:
    """What the engine knows; ``unread`` prompt tokens are still to be computed."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    unread: int = 0
    proposed: tuple[int, ...] = ()
    sequence: Tracked | None = None


class Batch:
    """A stand-in for vLLM's batch: rows are a table that outlives the requests in it."""

    def __init__(self, chance: random.Random, keep: int = KEEP, most: int = 1000) -> None:
        self.chance = chance
        self.rows = Rows(keep, most)
        self.table = np.full((32, WIDTH), -1, np.int32)
        self.lengths = np.zeros(32, np.int32)
        self.running: list[Request] = []

    def step(self, emitted: list[list[int]]) -> Step:
        for row, (request, new) in enumerate(zip(self.running, emitted, strict=True)):
            request.tokens += new
            self.table[row, : len(request.tokens)] = request.tokens
            self.lengths[row] = len(request.tokens)
        return self.rows.observe(emitted, self.lengths, self.table)


def observe(rows: Rows, *batch: tuple[list[int], list[int]]) -> Step:
    """One step of rows given as (history, emitted)."""
    table = np.zeros((len(batch), WIDTH), np.int32)
    for row, (history, new) in enumerate(batch):
        table[row, : len(history) + len(new)] = [*history, *new]
    return rows.observe([new for _, new in batch], [len(h) + len(n) for h, n in batch], table)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 5), st.booleans())
def test_every_request_keeps_its_sequence(seed: int, vocabulary: int, same_prompts: bool) -> None:
    """Requests come, end, move, wait, are preempted and read prompts in parts; texts over few tokens have many twins."""
    chance = random.Random(seed)
    batch = Batch(chance)
    preempted: list[tuple[int, Request]] = []
    common = [chance.randrange(vocabulary) for _ in range(12)]
    freed: set[int] = set()
    for step in range(40):
        while len(batch.running) < 8 and chance.random() < 0.5:
            prompt = list(common) if same_prompts else [chance.randrange(vocabulary) for _ in range(9)]
            batch.running.append(Request(prompt, list(prompt), unread=chance.choice([0, 0, 1, 3])))
        for since, request in list(preempted):
            if step - since > chance.randrange(2 * KEEP):
                preempted.remove((since, request))
                request.unread, request.proposed = chance.choice([0, 2]), ()
                batch.running.append(request)
        for request in [r for r in batch.running if chance.random() < 0.08]:
            batch.running.remove(request)
            if chance.random() < 0.5:
                preempted.append((step, request))
        if chance.random() < 0.3:
            chance.shuffle(batch.running)
        emitted = []
        for request in batch.running:
            if request.unread:
                request.unread -= 1
                emitted.append([])
                continue
            accepted = chance.randint(0, len(request.proposed))
            emitted.append([*request.proposed[:accepted], chance.randrange(vocabulary)])
        found = batch.step(emitted)
        assert [d.row for d in found.decoded] == [row for row, new in enumerate(emitted) if new]
        assert len({d.sequence.id for d in found.decoded}) == len(found.decoded), "no sequence is in two rows"
        assert not freed & {s.id for s in batch.rows}
        freed |= set(found.gone)
        assert {s.id for s in found.prompts} <= {s.id for s in batch.rows}
        for decoded in found.decoded:
            request = batch.running[decoded.row]
            assert decoded.sequence.tokens == request.tokens
            assert decoded.sequence.copy[: len(request.tokens)].tolist() == request.tokens
            if decoded.outcome is not None:
                new = emitted[decoded.row]
                assert decoded.outcome == Outcome(len(new) - 1, new[-1])
            request.proposed = tuple(chance.randrange(vocabulary) for _ in range(chance.randrange(4)))
            decoded.sequence.proposed = request.proposed
        assert all(batch.rows._step - s.step < KEEP for s in batch.rows)
    for row, request in enumerate(batch.running):
        assert any(s.tokens == request.tokens for s in batch.rows), row


def test_outcomes_are_those_of_the_proposal_wherever_the_row_goes() -> None:
    rows = Rows(4, 100)
    first = observe(rows, ([1, 2, 3], [4]), ([5, 6], [7]))
    one, two = (d.sequence for d in first.decoded)
    assert [d.outcome for d in first.decoded] == [None, None]
    one.proposed, two.proposed = (8, 9), ()
    moved = observe(rows, ([5, 6, 7], [1]), ([1, 2, 3, 4], [8, 2]))
    assert [d.sequence for d in moved.decoded] == [two, one]
    assert [d.outcome for d in moved.decoded] == [Outcome(0, 1), Outcome(1, 2)]
    assert one.prompt_length == 3


def test_twins_are_told_apart_by_what_was_accepted() -> None:
    rows = Rows(4, 100)
    first, second = (d.sequence for d in observe(rows, ([1, 2], [3]), ([1, 2], [3])).decoded)
    assert first is not second
    first.proposed, second.proposed = (7, 7), (8, 8)
    swapped = observe(rows, ([1, 2, 3], [8, 1]), ([1, 2, 3], [7, 7, 2]))
    assert [d.sequence for d in swapped.decoded] == [second, first]
    assert [d.outcome for d in swapped.decoded] == [Outcome(1, 1), Outcome(2, 2)]


def test_a_prompt_in_parts_is_told_once_and_early() -> None:
    rows = Rows(4, 100)
    prompt = list(range(20))
    [told] = observe(rows, (prompt, [])).prompts
    assert told.tokens == prompt
    assert observe(rows, (prompt, [])).prompts == []
    [decoded] = observe(rows, (prompt, [3])).decoded
    assert decoded.sequence is told
    assert (told.prompt_length, told.tokens) == (20, [*prompt, 3])


def test_a_preempted_request_comes_back_as_a_prompt() -> None:
    rows = Rows(4, 100)
    [decoded] = observe(rows, ([1, 2], [3])).decoded
    decoded.sequence.proposed = (9,)
    assert observe(rows).gone == []
    assert observe(rows, ([1, 2, 3], [])).prompts == [], "it is known still"
    [again] = observe(rows, ([1, 2, 3], [4])).decoded
    assert (again.sequence, again.outcome) == (decoded.sequence, None), (
        "what was proposed before is forgotten"
    )
    for _ in range(3):
        assert observe(rows).gone == []
    assert observe(rows).gone == [decoded.sequence.id]
    [anew] = observe(rows, ([1, 2, 3, 4], [])).prompts
    assert anew.id != decoded.sequence.id


def test_the_oldest_go_first_when_there_are_too_many() -> None:
    rows = Rows(100, 3)
    ids = [observe(rows, ([n, n], [n])).decoded[0].sequence.id for n in range(3)]
    assert observe(rows, ([9], [9])).gone == ids[:1]
    many = observe(rows, *(([20 + n], [1]) for n in range(5)))
    assert len(many.decoded) == 5, "those that are in the batch stay, however many"
    assert len(rows) == 5


@pytest.mark.parametrize("length", [0, -3, WIDTH + 1])
def test_rows_that_contradict_themselves_are_left_out(length: int) -> None:
    rows = Rows(4, 100)
    table = np.zeros((2, WIDTH), np.int32)
    step = rows.observe([[1, 2, 3], [], [5]], [length, length], table)
    assert (step.decoded, step.prompts, len(rows)) == ([], [], 0)
