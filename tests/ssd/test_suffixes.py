"""Suffix index: against brute force over the token list, with random growth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.errors import ConfigError
from sonoran.sampling.proposals import PointMass
from sonoran.ssd.suffixes import MAX_VISITED, SuffixIndex


def brute_force(tokens: list[int], min_n: int, max_n: int) -> tuple[int, int] | None:
    """(start of what followed, length) of the longest match among the latest MAX_VISITED occurrences."""
    ends = [
        end
        for end in range(len(tokens) - 1, min_n - 1, -1)
        if tokens[end - min_n : end] == tokens[len(tokens) - min_n :]
    ]
    found = []
    for end in ends[:MAX_VISITED]:
        length = next(
            n for n in range(min(max_n, end), 0, -1) if tokens[end - n : end] == tokens[len(tokens) - n :]
        )
        found.append((length, end))
    return max(((end, length) for length, end in found), key=lambda f: (f[1], f[0]), default=None)


def continued(tokens: list[int], start: int, k: int) -> list[int]:
    text = list(tokens)
    for i in range(k):
        text.append(text[start + i])
    return text[len(tokens) :]


chunks = st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=8)


@given(chunks, st.integers(0, 6), st.integers(1, 3), st.integers(0, 3))
def test_against_brute_force(steps: list[list[int]], k: int, min_n: int, more: int) -> None:
    index, tokens = SuffixIndex(min_n=min_n, max_n=min_n + more), list[int]()
    for step in steps:
        tokens += step
        index.extend(step)
        assert index.tokens == tokens
        found, expected = index.find(), brute_force(tokens, min_n, min_n + more)
        assert (None if found is None else (found.start, found.length)) == expected
        copied = [] if expected is None else continued(tokens, expected[0], k)
        assert list(index.propose(k).tokens) == copied


@pytest.mark.parametrize("text", [[7] * 20_000, [1, 2] * 10_000, list(range(100)) * 200])
def test_a_text_made_to_be_slow_costs_a_bounded_search_and_bounded_memory(text: list[int]) -> None:
    index = SuffixIndex(text)
    looked = 0

    class Counting(list[int]):
        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            nonlocal looked
            looked += 1
            return super().__getitem__(at)

    index.tokens = Counting(index.tokens)
    match = index.find()
    assert match is not None and match.length == index.max_n
    assert looked <= 2 * MAX_VISITED * (index.max_n + 1)
    assert len(index._earlier) == len(text) and len(index._latest) <= len(text)


def test_by_hand() -> None:
    text = [1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 3, 7, 1, 2]
    assert SuffixIndex(text).propose(3).tokens == (3, 7, 1)  # the latest "1 2" was followed by 3 7 1
    assert SuffixIndex([1, 2, 4, 5, 6, 1, 2]).propose(2).tokens == (4, 5)
    assert SuffixIndex([1, 2, 4, 5, 6, 1, 2], min_n=3).propose(2).tokens == ()
    assert SuffixIndex([5, 5]).propose(3).tokens == ()  # a bigram that occurred once
    assert SuffixIndex([5, 5], min_n=1).propose(3).tokens == (5, 5, 5)  # runs on into its own copy
    assert SuffixIndex([7, 8, 7, 8]).propose(5).tokens == (7, 8, 7, 8, 7)
    assert SuffixIndex().propose(3).tokens == ()


def test_proposals_are_point_masses() -> None:
    speculation = SuffixIndex([1, 2, 3, 1, 2]).propose(2)
    assert speculation.tokens == (3, 1)
    assert speculation.distributions == (PointMass(), PointMass())
    assert len(SuffixIndex([1, 2, 3, 1, 2]).propose(0)) == 0


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 <= min_n <= max_n, got 3 and 2"):
        SuffixIndex(min_n=3, max_n=2)
