"""N-gram index: against brute force over the token list, with random growth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import ConfigError
from sonoran.sampling.proposals import PointMass
from sonoran.ssd.ngram import NgramIndex


def brute_force(tokens: list[int], k: int, min_n: int, max_n: int) -> list[int]:
    for n in range(min(max_n, len(tokens)), min_n - 1, -1):
        suffix = tokens[len(tokens) - n :]
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == suffix:
                text = list(tokens)
                for i in range(k):
                    text.append(text[start + n + i])
                return text[len(tokens) :]
    return []


chunks = st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=8)


@given(chunks, st.integers(0, 6), st.integers(1, 3), st.integers(0, 3))
def test_against_brute_force(steps: list[list[int]], k: int, min_n: int, more: int) -> None:
    index, tokens = NgramIndex(min_n=min_n, max_n=min_n + more), []
    for step in steps:
        tokens += step
        index.extend(step)
        assert index.tokens == tokens
        assert list(index.propose(k).tokens) == brute_force(tokens, k, min_n, min_n + more)


def test_by_hand() -> None:
    text = [1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 3, 7, 1, 2]
    assert NgramIndex(text).propose(3).tokens == (3, 7, 1)  # the latest "1 2" was followed by 3 7 1
    assert NgramIndex([1, 2, 4, 5, 6, 1, 2]).propose(2).tokens == (4, 5)
    assert NgramIndex([1, 2, 4, 5, 6, 1, 2], min_n=3).propose(2).tokens == ()
    assert NgramIndex([5, 5]).propose(3).tokens == ()  # a bigram that occurred once
    assert NgramIndex([5, 5], min_n=1).propose(3).tokens == (5, 5, 5)  # runs on into its own copy
    assert NgramIndex([7, 8, 7, 8]).propose(5).tokens == (7, 8, 7, 8, 7)
    assert NgramIndex().propose(3).tokens == ()


def test_proposals_are_point_masses() -> None:
    speculation = NgramIndex([1, 2, 3, 1, 2]).propose(2)
    assert speculation.tokens == (3, 1)
    assert speculation.distributions == (PointMass(), PointMass())
    assert len(NgramIndex([1, 2, 3, 1, 2]).propose(0)) == 0


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 <= min_n <= max_n, got 3 and 2"):
        NgramIndex(min_n=3, max_n=2)
