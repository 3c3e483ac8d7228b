import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonoran.errors import PlanError
from sonoran.planning.profile.acceptance import DEEPEST, Acceptance, TextRanks
from sonoran.planning.profile.replay import (
    behaviour_of,
    best_fan_out,
    outcome_ranks,
    replay_budget,
    replay_confidence,
    replay_lengths,
    replay_ssd,
)
from sonoran.theory.distributions import length_distribution
from sonoran.theory.speedup import tokens_from_lengths, tokens_per_round
from tests.planning.profile.made_up import acceptance
from tests.planning.profile.made_up import text as made_up_text


def single(rejected, free=None):
    return Acceptance("coupled", 0.0, (TextRanks(tuple(rejected), tuple(free or [r + 1 for r in rejected])),))


def test_rounds_walk_through_a_text():
    # Accepted runs of 2, 0 and 3; with K = 3 only whole rounds count.
    text = single([0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0])
    counts = replay_lengths(text, 3)
    # From 0: 2, then 0 at 3, then 3 at 4, then 3 at 8; eight starts add their own walks.
    assert sum(counts) == sum(replay_ssd(text, [1, 1, 1, 1]).lengths_hit) + sum(
        replay_ssd(text, [1, 1, 1, 1]).lengths_miss
    )
    only = Acceptance("coupled", 0.0, (TextRanks((0, 0, 1, 0), (1, 1, 2, 1)),))
    assert replay_lengths(only, 3) == (0, 0, 1, 0)


def test_hits_are_ranks_within_the_fan_out():
    text = single([2] * 9)  # nothing is ever accepted, and the bonus token is the second candidate
    assert replay_ssd(text, [1, 1, 9]).after_primary == 0.0
    hit = replay_ssd(text, [2, 0, 0])
    assert (hit.after_primary, hit.tokens_per_round) == (1.0, 1.0)


def test_backup_none_verifies_nothing_after_a_miss():
    text = single([3, 0] * 20, [4, 1] * 20)
    drafted, nothing = replay_ssd(text, [1, 1], backup="draft"), replay_ssd(text, [1, 1], backup="none")
    assert nothing.lengths_miss[1] == 0
    assert drafted.lengths_miss[1] > 0
    # Misses are at odd tokens (rank 3, 4). With no speculation the whole budget is for the next one, of rank 1.
    assert (nothing.after_primary, nothing.after_backup) == (0.0, 1.0)


@settings(max_examples=10, deadline=None)
@given(rate=st.floats(0.2, 0.95), k=st.integers(1, 6))
def test_independent_acceptance_gives_the_geometric_law(rate, k):
    text = acceptance(rate, texts=6, length=1500)
    counts = replay_lengths(text, k)
    assert tokens_from_lengths(counts) == pytest.approx(tokens_per_round(text.rate, k), rel=0.05)
    law = length_distribution(behaviour_of(text, k).acceptance, k)
    assert law == pytest.approx(length_distribution([text.rate], k), abs=0.03)


def test_behaviour_reproduces_the_replay():
    text = acceptance(0.7, texts=4)
    fan_out = best_fan_out(text, 4, 8)
    assert sum(fan_out) == 8 and len(fan_out) == 5
    replay = replay_ssd(text, fan_out)
    behaviour = behaviour_of(text, 4, replay)
    assert behaviour.hit_rate("primary", fan_out) == pytest.approx(replay.after_primary, abs=0.03)
    assert tokens_from_lengths(behaviour.lengths("primary", 4)) == pytest.approx(replay.tokens_hit)
    assert tokens_from_lengths(behaviour.lengths("draft", 4)) == pytest.approx(replay.tokens_miss)
    assert length_distribution(behaviour.acceptance, 4) == pytest.approx(
        np.array(replay.lengths_hit) / sum(replay.lengths_hit)
    )


def test_more_budget_never_hits_less():
    text = acceptance(0.7, texts=2, guessable=0.3)
    rates = []
    for budget in (1, 2, 4, 8, 16, 32):
        replay = replay_ssd(text, best_fan_out(text, 3, budget))
        rates.append((replay.hits_after_primary + replay.hits_after_backup) / replay.rounds)
    assert rates == sorted(rates)


def test_runs_of_hard_text_show_in_the_replay_alone():
    """Half easy, half hopeless: after a miss the next round is hopeless too, which no independent law says."""
    text = single([0] * 300 + [DEEPEST + 1] * 300, [1] * 300 + [DEEPEST + 1] * 300)
    replay = replay_ssd(text, [4, 4, 4])
    assert replay.after_primary > 0.98
    assert replay.after_backup == 0.0
    assert replay.tokens_hit > 2.9 and replay.tokens_miss == 1.0


def test_acceptance_reports_rates_and_ranks():
    text = Acceptance(
        "coupled", 0.0, (TextRanks((0, 0, 2, 1), (1, 1, 3, 2)), TextRanks((0, 0, 0, 0), (1, 1, 1, 1)))
    )
    assert (text.positions, text.rate) == (8, 0.75)
    assert text.rejected_cdf[1] == 0.5 and text.rejected_cdf[2] == 1.0
    assert text.free_cdf[1] == 0.75
    assert text.standard_error == pytest.approx(0.25)
    assert Acceptance("coupled", 0.0, (made_up_text(0.5, 400),)).standard_error == pytest.approx(
        0.025, rel=0.02
    )


def test_ranks_beyond_the_deepest_are_never_guessed():
    text = single([DEEPEST + 1] * 9, [DEEPEST + 1] * 9)
    assert text.rejected_cdf[-1] == 0.0
    assert replay_ssd(text, [DEEPEST, 0]).after_primary == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TextRanks((0,), (1, 2)), "must agree"),
        (lambda: TextRanks((-1,), (1,)), "from 0"),
        (lambda: TextRanks((0,), (0,)), "from 1"),
        (lambda: Acceptance("coupled", 0.0, ()), "at least one position"),
        (lambda: replay_lengths(single([0, 0]), 2), "shorter than 3 positions"),
        (lambda: replay_ssd(single([0] * 9), [1, 1], backup="ngram"), "draft and none"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(PlanError, match=message):
        call()


def believing(rejected, chances):
    """A text whose draft gave those chances to its own token and to the candidates after it."""
    free = tuple(r + 1 for r in rejected)
    return TextRanks(tuple(rejected), free, tuple(chances), tuple(chances))


SURE, TORN = (0.96, 0.03, 0.01), (0.5, 0.4, 0.1)


def test_outcomes_are_placed_among_all_guesses_of_their_round():
    # Torn at the second place, where the second candidate is the target's token.
    text = believing([0, 1, 0, 0], [SURE, TORN, SURE, SURE])
    # From 0 with K = 2: first (2, best), then (1, second), whose chance is 0.96 x 0.4.
    assert outcome_ranks(text, 2)[0] == 2
    # From 1: rejected at once, with 0.4 behind all accepted (0.5 x 0.96 x 0.96).
    assert outcome_ranks(text, 2)[1] == 2
    assert outcome_ranks(text, 0)[1] == 2
    assert outcome_ranks(text, 1)[2] == 1
    # Had the draft been sure of the wrong token, the right one would be a late guess.
    misled = believing([0, 1, 0, 0], [TORN, SURE, SURE, SURE])
    assert outcome_ranks(misled, 2)[0] == 4  # after (2, best), (0, second) and (0, third)
    unknown = believing([0, 3, 0, 0], [SURE, TORN, SURE, SURE])
    assert outcome_ranks(unknown, 2)[0] == float("inf")


def test_confidence_hits_what_the_average_misses():
    rng = np.random.default_rng(1)
    rejected, chances = [], []
    for _ in range(300):
        torn = rng.random() < 0.3
        row = TORN if torn else SURE
        rejected.append(int(torn and rng.random() < 0.5))
        chances.append(row)
    text = Acceptance("coupled", 0.0, (believing(rejected, chances),))
    bare = Acceptance("coupled", 0.0, (TextRanks(text.texts[0].rejected, text.texts[0].free),))
    assert text.has_chances and not bare.has_chances
    for budget in (2, 3):
        average = replay_budget(bare, 4, budget)
        assert average == replay_ssd(bare, best_fan_out(bare, 4, budget))
        assert replay_budget(text, 4, budget).after_primary > average.after_primary + 0.05
    assert replay_confidence(text, 4, 15).after_primary == 1.0
    law = behaviour_of(text, 4, replay_confidence(text, 4, 3))
    assert law.hit_rate("primary", ()) == replay_confidence(text, 4, 3).after_primary
    with pytest.raises(PlanError, match="calibrate again"):
        replay_confidence(bare, 4, 3)
    with pytest.raises(PlanError, match="all its positions"):
        TextRanks((0, 0), (1, 1), (SURE,), (SURE,))
