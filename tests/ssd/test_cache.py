"""Speculation cache: read once, bounded, generations, partial speculations; checked against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import ConfigError
from sonoran.sampling.proposals import EMPTY, PointLaw, UniformLaw
from sonoran.ssd.cache import END, SpeculationCache
from sonoran.types import Outcome

A, B, C = Outcome(0, 5), Outcome(1, 5), Outcome(3, 9)


def test_a_branch_that_ended_is_shorter_than_the_others():
    cache = SpeculationCache()
    cache.open(7, 1, [A, B])
    cache.append(7, 1, [10, 20], [PointLaw(), UniformLaw(9)])
    cache.append(7, 1, [END, 21], [PointLaw(), UniformLaw(9)])
    assert cache.take(7, 1, A).tokens == (10,)
    cache.open(7, 2, [A, B])
    cache.append(7, 2, [10, 20], [PointLaw(), UniformLaw(9)])
    cache.append(7, 2, [END, 21], [PointLaw(), UniformLaw(9)])
    both = cache.take(7, 2, B)
    assert (both.tokens, both.laws) == ((20, 21), (UniformLaw(9), UniformLaw(9)))


def test_a_hit_is_read_once() -> None:
    cache = SpeculationCache()
    cache.open(7, 1, [A, B])
    assert cache.append(7, 1, [10, 20])
    assert cache.append(7, 1, [11, 21])
    assert cache.take(7, 1, B).tokens == (20, 21)
    assert cache.take(7, 1, B) is None
    assert len(cache) == 0
    assert not cache.append(7, 1, [12, 22])  # the tree may still be running


def test_a_miss_ends_the_round_too() -> None:
    cache = SpeculationCache()
    cache.open(7, 1, [A])
    assert cache.take(7, 1, Outcome(0, 6)) is None
    assert cache.take(7, 1, A) is None


def test_an_early_read_is_partial() -> None:
    cache = SpeculationCache()
    cache.open(7, 1, [A, B])
    assert cache.take(7, 1, A) == EMPTY
    cache.open(7, 1, [A, B])
    cache.append(7, 1, [10, 20], [PointLaw(), UniformLaw(9)])
    speculation = cache.take(7, 1, B)
    assert (speculation.tokens, speculation.laws) == ((20,), (UniformLaw(9),))


def test_generations() -> None:
    cache = SpeculationCache()
    cache.open(7, 5, [A])
    cache.append(7, 5, [10])
    assert cache.take(7, 4, A) is None  # late request
    assert not cache.append(7, 4, [99])
    assert cache.take(7, 5, A).tokens == (10,)
    cache.open(7, 5, [A])
    assert cache.take(7, 6, A) is None  # the sequence has moved on
    assert 7 not in cache


def test_the_oldest_round_makes_room() -> None:
    cache = SpeculationCache(max_branches=4)
    cache.open(1, 0, [A, B])
    cache.open(2, 0, [A, B])
    cache.open(1, 0, [A])  # replaced, hence younger than 2
    cache.open(3, 0, [A, B])
    assert 2 not in cache
    assert 1 in cache
    assert len(cache) == 3


def test_bad_use_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_branches must be >= 1, got 0"):
        SpeculationCache(0)
    cache = SpeculationCache(2)
    with pytest.raises(ConfigError, match="3 branches exceed the cache of 2"):
        cache.open(1, 0, [A, B, C])
    with pytest.raises(ConfigError, match="guessed twice"):
        cache.open(1, 0, [A, A])
    cache.open(1, 0, [A, B])
    with pytest.raises(ConfigError, match="2 branches, but 1 tokens"):
        cache.append(1, 0, [3])
    cache.append(1, 0, [3, 4])
    with pytest.raises(ConfigError, match="in every step"):
        cache.append(1, 0, [3, 4], [PointLaw(), PointLaw()])


outcomes = st.builds(Outcome, st.integers(0, 2), st.integers(0, 2))
operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("open"),
            st.integers(0, 3),
            st.integers(0, 2),
            st.lists(outcomes, unique=True, max_size=4),
        ),
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(0, 2)),
        st.tuples(st.just("take"), st.integers(0, 3), st.integers(0, 2), outcomes),
        st.tuples(st.just("drop"), st.integers(0, 3)),
    ),
    max_size=60,
)


@given(operations, st.integers(4, 10))
def test_against_a_plain_model(steps: list[tuple], bound: int) -> None:
    cache = SpeculationCache(bound)
    model: dict[int, tuple[int, dict[Outcome, list[int]]]] = {}  # insertion order is age
    counter = 0
    for name, sequence, *rest in steps:
        if name == "open":
            generation, guesses = rest
            cache.open(sequence, generation, guesses)
            model.pop(sequence, None)
            while sum(len(d) for _, d in model.values()) + len(guesses) > bound:
                del model[next(iter(model))]
            model[sequence] = (generation, {o: [] for o in guesses})
        elif name == "append":
            alive = sequence in model and model[sequence][0] == rest[0]
            size = len(model[sequence][1]) if sequence in model else 0
            drafted = list(range(counter, counter + size))
            counter += size
            assert cache.append(sequence, rest[0], drafted) == alive
            if alive:
                for path, token in zip(model[sequence][1].values(), drafted, strict=True):
                    path.append(token)
        elif name == "take":
            generation, outcome = rest
            got = cache.take(sequence, generation, outcome)
            expected = None
            if sequence in model and generation >= model[sequence][0]:
                current, paths = model.pop(sequence)
                expected = paths.get(outcome) if current == generation else None
            assert (None if got is None else list(got.tokens)) == expected
        else:
            cache.drop(sequence)
            model.pop(sequence, None)
        assert len(cache) == sum(len(d) for _, d in model.values()) <= bound
        assert all((s in cache) == (s in model) for s in range(4))
