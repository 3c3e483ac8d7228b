"""Speculation cache: read once, partial speculations, branches that end; checked against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import ConfigError
from sonoran.sampling.proposals import EMPTY, PointMass, UniformDistribution
from sonoran.ssd.cache import END, SpeculationCache
from sonoran.types import Outcome

A, B = Outcome(0, 5), Outcome(1, 5)


def opened(*outcomes: Outcome) -> SpeculationCache:
    cache = SpeculationCache()
    cache.open(outcomes)
    return cache


def test_a_branch_that_ended_is_shorter_than_the_others() -> None:
    for outcome, tokens in ((A, (10,)), (B, (20, 21))):
        cache = opened(A, B)
        cache.append([10, 20], [PointMass(), UniformDistribution(9)])
        cache.append([END, 21], [PointMass(), UniformDistribution(9)])
        found = cache.take(outcome)
        assert found is not None
        assert found.tokens == tokens
        assert found.distributions == (
            (PointMass(),) if outcome == A else (UniformDistribution(9), UniformDistribution(9))
        )


def test_a_hit_is_read_once() -> None:
    cache = opened(A, B)
    cache.append([10, 20])
    cache.append([11, 21])
    found = cache.take(B)
    assert found is not None
    assert found.tokens == (20, 21)
    assert cache.take(B) is None
    assert cache.take(A) is None
    assert len(cache) == 0
    with pytest.raises(ConfigError, match="0 branches, but 2 tokens"):
        cache.append([12, 22])  # whoever still drafts has not noticed that the round is over


def test_a_miss_ends_the_round_too() -> None:
    cache = opened(A)
    assert cache.take(Outcome(0, 6)) is None
    assert cache.take(A) is None


def test_an_early_read_is_partial() -> None:
    assert opened(A, B).take(A) == EMPTY
    cache = opened(A, B)
    cache.append([10, 20], [PointMass(), UniformDistribution(9)])
    found = cache.take(B)
    assert found is not None
    assert (found.tokens, found.distributions) == ((20,), (UniformDistribution(9),))


def test_nothing_of_an_earlier_round_is_left() -> None:
    cache = opened(A, B)
    cache.append([10, 20], [PointMass(), PointMass()])
    cache.open([B])
    assert cache.take(B) == EMPTY
    cache.open([A])
    cache.append([30])  # the first step decides anew whether there are distributions
    found = cache.take(A)
    assert found is not None
    assert (found.tokens, found.distributions) == ((30,), ())


def test_bad_use_is_refused() -> None:
    cache = opened(A, B)
    with pytest.raises(ConfigError, match="guessed twice"):
        cache.open([A, A])
    assert len(cache) == 2, "what was there stays"
    with pytest.raises(ConfigError, match="2 branches, but 1 tokens"):
        cache.append([3])
    with pytest.raises(ConfigError, match="2 tokens and 1 distributions"):
        cache.append([3, 4], [PointMass()])
    cache.append([3, 4])
    with pytest.raises(ConfigError, match="in every step"):
        cache.append([3, 4], [PointMass(), PointMass()])


outcomes = st.builds(Outcome, st.integers(0, 2), st.integers(0, 2))
operations = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.lists(outcomes, unique=True, max_size=4)),
        st.tuples(st.just("append"), st.booleans()),
        st.tuples(st.just("take"), outcomes),
    ),
    max_size=60,
)


@given(operations)
def test_against_a_plain_model(steps: list[tuple]) -> None:
    cache = SpeculationCache()
    model: dict[Outcome, list[int]] = {}
    for number, (name, value) in enumerate(steps):
        if name == "open":
            cache.open(value)
            model = {outcome: [] for outcome in value}
        elif name == "append":
            # Only the first branch may end, so that some go on.
            drafted = [END if value and i == 0 else 10 * number + i for i in range(len(model))]
            cache.append(drafted)
            for path, token in zip(model.values(), drafted, strict=True):
                path.append(token)
        else:
            got, expected = cache.take(value), model.get(value)
            if expected is not None and END in expected:
                expected = expected[: expected.index(END)]
            assert (None if got is None else list(got.tokens)) == expected
            model = {}
        assert len(cache) == len(model)
