"""Copies: what they are worth, where they begin, and that one which broke is taken up again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.ssd.copies import LEAST_CHANCE, CopyPolicy, CopyRates, CopySource, Source

SOURCE = list(range(100, 160))


def followed(output: list[int], prompt: list[int] | None = None) -> CopySource:
    prompt = SOURCE if prompt is None else prompt
    text = CopySource(CopyRates(), len(prompt))
    text.follow([*prompt, *output])
    return text


def policy(pass_ms: Callable[[int], float], tokens: float = 3.0, limit: int = 15) -> CopyPolicy:
    """A policy that has seen rounds of the rival, five rows each, and passes of every size."""
    made = CopyPolicy(limit)
    for rows in range(1, limit + 2):
        made.latency.observe(rows, pass_ms(rows))
    made.observe_round(round(10 * tokens), 10 * pass_ms(5))
    made.rival.observe(tokens, 4.0, 0.0)
    return made


def test_a_copy_follows_its_source() -> None:
    assert followed(SOURCE[:20]).best() == Source(20, 20)
    assert followed([]).best() is None


@pytest.mark.parametrize(
    ("written", "start", "evidence"),
    [
        ([7], 21, 0),  # one token stands for another
        ([7, *SOURCE[21:23]], 23, 2),
        ([7, 8, 9, *SOURCE[21:23]], 23, 2),  # for three
        ([*SOURCE[24:26]], 26, 2),  # four were left out
        ([7, SOURCE[20]], 21, 1),  # one was put in
    ],
)
def test_a_copy_goes_on_behind_the_place_where_it_broke(
    written: list[int], start: int, evidence: int
) -> None:
    text = followed([*SOURCE[:20], *written])
    assert Source(start, evidence, resumed=True) in text._sources


def test_a_break_after_a_short_match_is_no_edit() -> None:
    assert followed([*SOURCE[:3], 7]).best() is None


def test_chances_follow_what_was_right() -> None:
    rates = CopyRates()
    before = rates.chance(9, False)
    for right, trend in ((True, 1), (False, -1)):
        own = CopyRates(rates)
        for _ in range(50):
            own.observe(Source(0, 9), right)
        assert trend * (own.chance(9, False) - before) > 0.1
        assert own.chance(3, False) == pytest.approx(rates.chance(3, False)), "another class"
    assert all(0.0 <= share <= 1.0 for share in rates.as_dict().values())


def test_the_repeats_of_a_prompt_are_not_what_copies_are_judged_by() -> None:
    assert followed([], SOURCE * 3).rates.as_dict() == {}
    assert followed(SOURCE).rates.as_dict() != {}


def test_a_copy_is_as_long_as_its_rows_are_worth() -> None:
    text = followed(SOURCE[:40])
    for _ in range(200):
        text.rates.observe(Source(0, 40), True)
        text.rates.observe(Source(0, 60), True)
    start, free = policy(lambda rows: 10.0).choose(text, 15, 1)
    assert (start, free) == (40, 15)
    lengths = [
        policy(lambda rows, s=slope: 10.0 + s * max(0, rows - 4)).choose(text, 15, 1)[1]
        for slope in (1.0, 9.0)
    ]
    assert 15 >= lengths[0] > lengths[1]


def test_what_is_there_already_is_sent_when_it_promises_more() -> None:
    text = followed(SOURCE[:4])
    chooser = policy(lambda rows: 10.0)
    assert chooser.choose(text, 15, 1, expected=20.0) == (0, 0)
    assert chooser.choose(text, 15, 1, expected=1.0)[1] > 0


@given(st.lists(st.integers(0, 3), max_size=80), st.integers(0, 20), st.integers(0, 20))
def test_any_text_gives_a_copy_of_itself_within_the_limits(
    tokens: list[int], prompt: int, limit: int
) -> None:
    text = CopySource(CopyRates(), prompt)
    for end in range(0, len(tokens) + 1, 7):
        text.follow(tokens[:end])
    text.follow(tokens)
    whole = CopySource(CopyRates(), prompt)
    whole.follow(tokens)
    assert text._sources == whole._sources
    for source in text._sources:
        assert 0 <= source.start < len(tokens)
        chances = text.rates.chances(source, limit)
        assert len(chances) <= limit and all(chance >= LEAST_CHANCE for chance in chances)
    start, length = CopyPolicy(15).choose(text, limit, 1)
    assert 0 <= length <= min(limit, 15)
    assert len(text.index.copy(start, length)) == length if length else start == 0
