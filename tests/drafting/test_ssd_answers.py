"""What a worker answers is checked before anything is made of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sonoran.config import Verification
from sonoran.drafting.ssd import read_answer
from sonoran.errors import WorkerError
from sonoran.sampling.proposals import EMPTY, PointMass, SparseDistribution, Speculation, UniformDistribution
from sonoran.ssd.messages import Answer, Item, Proposal, encode_distribution

VOCAB = 64
ITEM = Item(5, 2, 10, [1], 3, 0)


def answer(tokens: list[int], distributions: list[Proposal] | None = None, **changes: Any) -> Answer:
    values = {"sequence": 5, "generation": 2, "known": True, "origin": "primary", "fan_out": [1, 2]}
    return Answer(**{**values, "tokens": tokens, "distributions": distributions or [], **changes})


def read(given: Answer, rule: Verification = "rejection") -> Speculation:
    return read_answer(given, ITEM, rule, VOCAB)


def sparse(ids: list[int], probabilities: list[float]) -> Proposal:
    return encode_distribution(SparseDistribution(np.asarray(ids, np.int32), np.asarray(probabilities)))


def test_every_kind_of_distribution_arrives() -> None:
    q = SparseDistribution(np.asarray([3, 9], np.int32), np.asarray([0.25, 0.75]))
    found = read(
        answer(
            [9, 4, 2],
            [
                encode_distribution(q),
                encode_distribution(UniformDistribution(8)),
                encode_distribution(PointMass()),
            ],
        )
    )
    assert found.tokens == (9, 4, 2)
    assert [found.distributions[i].probability(token) for i, token in enumerate(found.tokens)] == [
        0.75,
        0.125,
        1.0,
    ]


def test_the_coupled_rule_needs_no_distributions_and_an_empty_answer_is_fine() -> None:
    assert read(answer([1, 2]), "coupled") == Speculation((1, 2))
    assert read(answer([])) == EMPTY


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (answer([1], sequence=6), "sequence 6 instead of 5"),
        (answer([1], generation=1), "sequence 5"),
        (answer([1, 2, 3, 4]), "4 tokens instead of at most 3"),
        (answer([64]), "token 64 in a vocabulary of 64"),
        (answer([-1]), "token -1"),
        (answer([2**62]), "token 4611686018427387904"),
        (answer([1], fan_out=[1] * 5000), "fan-out of 5000"),
    ],
)
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_answers_that_cannot_be(given: Answer, text: str, rule: Verification) -> None:
    with pytest.raises(WorkerError, match=text):
        read(given, rule)


@pytest.mark.parametrize(
    "distributions",
    [
        [],
        [Proposal(), Proposal()],
        [Proposal(-3)],
        [Proposal(65)],
        [Proposal(1)],
        [Proposal(0, b"\0\0\0", b"\0" * 8)],
        [Proposal(0, b"\0" * 8, b"\0" * 8)],
        [Proposal(0, b"", b"\0" * 8)],
        [Proposal(2, b"\1\0\0\0", b"\0\0\0\0\0\0\xf0\x3f")],
        [sparse([1, 2], [0.5, 0.4])],
        [sparse([2, 1], [0.5, 0.5])],
        [sparse([1, 1], [0.5, 0.5])],
        [sparse([1, 70], [0.5, 0.5])],
        [sparse([-1, 1], [0.5, 0.5])],
        [sparse([1, 2], [float("nan"), 0.5])],
        [sparse([1, 2], [1.5, -0.5])],
        [sparse([1, 2], [0.0, 1.0])],
        [sparse([2, 3], [0.5, 0.5])],
    ],
    ids=str,
)
def test_distributions_that_the_token_was_not_drawn_from(distributions: list[Proposal]) -> None:
    with pytest.raises(WorkerError):
        read(answer([1], distributions))
