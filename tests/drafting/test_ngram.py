"""N-gram drafter: against brute force over the token list, with random growth and rollback."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.drafting.ngram import CONTINUATIONS, NgramDrafter
from sonoran.errors import ConfigError
from sonoran.sampling.proposals import PointLaw


def brute_recent(tokens: list[int], k: int, min_n: int, max_n: int) -> list[int]:
    for n in range(max_n, min_n - 1, -1):
        if n > len(tokens):
            continue
        suffix = tokens[len(tokens) - n :]
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == suffix:
                text = list(tokens)
                for i in range(k):
                    text.append(text[start + n + i])
                return text[len(tokens) :]
    return []


def brute_frequent(tokens: list[int], k: int, min_n: int, max_n: int) -> list[int]:
    drafted: list[int] = []
    while len(drafted) < k:
        text = tokens + drafted
        for n in range(max_n, min_n - 1, -1):
            followers = [
                (tokens[i + n], i)
                for i in range(len(tokens) - n)
                if n <= len(text) and tokens[i : i + n] == text[len(text) - n :]
            ]
            if followers:
                counts = {t: sum(1 for u, _ in followers if u == t) for t, _ in followers}
                last = dict(followers)
                drafted.append(max(counts, key=lambda t: (counts[t], last[t])))
                break
        else:
            return drafted
    return drafted


BRUTE = {"recent": brute_recent, "frequent": brute_frequent}
chunks = st.lists(
    st.one_of(st.lists(st.integers(0, 3), max_size=12), st.integers(0, 40)), min_size=1, max_size=8
)


@pytest.mark.parametrize("continuation", CONTINUATIONS)
@given(chunks, st.integers(0, 6), st.integers(1, 3), st.integers(0, 3))
def test_against_brute_force(continuation: str, steps: list, k: int, min_n: int, more: int) -> None:
    drafter = NgramDrafter(min_n=min_n, max_n=min_n + more, continuation=continuation)
    tokens: list[int] = []
    for step in steps:
        if isinstance(step, int):
            tokens = tokens[: max(0, len(tokens) - step)]
            drafter.truncate(len(tokens))
        else:
            tokens = tokens + step
            drafter.extend(step)
        assert drafter.tokens == tokens
        expected = BRUTE[continuation](tokens, k, min_n, min_n + more)
        assert list(drafter.propose(k).tokens) == expected


@pytest.mark.parametrize("continuation", CONTINUATIONS)
@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30))
def test_rollback_leaves_no_trace(continuation: str, kept: list[int], gone: list[int]) -> None:
    drafter = NgramDrafter(kept, min_n=1, max_n=3, continuation=continuation)
    fresh = NgramDrafter(kept, min_n=1, max_n=3, continuation=continuation)
    drafter.extend(gone)
    drafter.truncate(len(kept))
    assert vars(drafter._index) == vars(fresh._index)


def test_by_hand() -> None:
    text = [1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 3, 7, 1, 2]
    assert NgramDrafter(text).propose(3).tokens == (3, 7, 1)  # the latest "1 2" was followed by 3 7 1
    assert NgramDrafter(text, continuation="frequent").propose(1).tokens == (3,)
    assert NgramDrafter([1, 2, 4, 5, 6, 1, 2]).propose(2).tokens == (4, 5)
    assert NgramDrafter([1, 2, 4, 5, 6, 1, 2], min_n=3).propose(2).tokens == ()
    assert NgramDrafter([5, 5]).propose(3).tokens == ()  # a bigram that occurred once
    assert NgramDrafter([5, 5], min_n=1).propose(3).tokens == (5, 5, 5)  # runs on into its own copy
    assert NgramDrafter([7, 8, 7, 8]).propose(5).tokens == (7, 8, 7, 8, 7)
    assert NgramDrafter().propose(3).tokens == ()


def test_proposals_are_point_masses() -> None:
    speculation = NgramDrafter([1, 2, 3, 1, 2]).propose(2)
    assert speculation.tokens == (3, 1)
    assert speculation.laws == (PointLaw(), PointLaw())
    assert len(NgramDrafter([1, 2, 3, 1, 2]).propose(0)) == 0


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 <= min_n <= max_n, got 3 and 2"):
        NgramDrafter(min_n=3, max_n=2)
    with pytest.raises(ConfigError, match="did you mean 'recent'"):
        NgramDrafter(continuation="recents")
    with pytest.raises(ConfigError, match="cannot keep 3 of 2 tokens"):
        NgramDrafter([1, 2]).truncate(3)
