"""The event simulation: what it does by itself, and where it must agree with the closed forms."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonoran.errors import PlanError
from sonoran.planning.rounds.behaviour import Behaviour
from sonoran.planning.rounds.costs import Costs
from sonoran.planning.rounds.events import simulate
from sonoran.planning.rounds.formulas import predict
from sonoran.planning.rounds.plan import RoundPlan
from sonoran.theory.latency import LatencyCurve

FLAT = Costs(LatencyCurve.of({1: 10.0}), LatencyCurve.of({1: 1.0}))
CERTAIN = Behaviour((1.0,), np.array([0.0, 1.0]), np.array([0.0, 1.0]))
HALF = Behaviour((0.5,), np.array([0.0, 0.6, 0.8]), np.array([0.0, 0.7, 0.9]))


def ssd(k, fan_out, **options):
    return RoundPlan("ssd", k, fan_out=tuple(fan_out), **options)


def test_autoregressive_is_the_pass_and_nothing_else():
    costs = dataclasses.replace(FLAT, host_ms=2.0, row_ms=0.5)
    result = simulate(RoundPlan("ar", batch=4), costs, HALF)
    assert result.round_ms == 14.0
    assert result.tokens_per_s == pytest.approx(4000 / 14.0)


def test_sampling_ends_at_the_first_rejection():
    costs = dataclasses.replace(FLAT, row_ms=1.0)
    event, formula = (run(RoundPlan("sd", 3), costs, HALF) for run in (simulate, predict))
    # Of four rows 1 + 1/2 + 1/4 + 1/8 are sampled on average.
    assert formula.round_ms == pytest.approx(10.0 + 3 * 1.0 + 1.875)
    assert event.round_ms == pytest.approx(formula.round_ms, rel=1e-3)
    plan = ssd(3, [1] * 4, early_answers=False)
    assert simulate(plan, costs, HALF).round_ms == pytest.approx(
        predict(plan, costs, HALF).round_ms, rel=0.02
    )


def test_a_perfect_draft_hides_entirely():
    result = simulate(ssd(4, [1] * 5), FLAT, CERTAIN, rounds=50)
    # A draft round is 1 + 4 passes of 1 ms behind one of 10.
    assert (result.hit_rate, result.tokens_per_round, result.round_ms) == (1.0, 5.0, 10.0)
    assert result.wait_ms == pytest.approx(0.0)
    assert result.draft_round_ms == pytest.approx(5.0)


def test_message_and_service_are_exposed_every_round():
    costs = dataclasses.replace(FLAT, message_ms=1.0, service_ms=0.5)
    result = simulate(ssd(4, [1] * 5), costs, CERTAIN, rounds=50)
    assert result.round_ms == pytest.approx(11.5)
    assert result.wait_ms == pytest.approx(1.5)


def test_never_guessing_right_is_sd_plus_nothing():
    never = Behaviour((0.5,), np.zeros(2), np.zeros(2))
    missed = simulate(ssd(3, [1] * 4), FLAT, never, rounds=400)
    synchronous = simulate(RoundPlan("sd", 3), FLAT, never, rounds=400)
    assert missed.hit_rate == 0.0
    assert missed.tokens_per_s == pytest.approx(synchronous.tokens_per_s, rel=1e-2)


def test_early_answers_are_short_and_late_ones_wait():
    slow = dataclasses.replace(FLAT, draft=LatencyCurve.of({1: 4.0}))  # trunk 4, steps end at 8, 12, ...
    waiting = simulate(ssd(4, [1] * 5, early_answers=False), slow, CERTAIN, rounds=50)
    assert (waiting.round_ms, waiting.tokens_per_round, waiting.cut_rate) == (20.0, 5.0, 0.0)
    early = simulate(ssd(4, [1] * 5), slow, CERTAIN, rounds=50)
    # The outcome comes at 10, the pass that runs ends at 12: two tokens are ready.
    assert (early.round_ms, early.tokens_per_round, early.cut_rate) == (12.0, 3.0, 1.0)


def test_what_was_cut_short_is_drafted_on_while_that_pays():
    one, many = LatencyCurve.of({1: 2.0}), LatencyCurve.of({1: 4.0})
    slow = dataclasses.replace(FLAT, draft=one, trunk=many, tree=many)
    # Three tokens are there at 12 ms. Two more tokens for 4 ms, where 4 ms are worth 1 to 1.25 tokens.
    whole = simulate(ssd(4, [1] * 5), slow, CERTAIN, rounds=50)
    assert (whole.round_ms, whole.tokens_per_round, whole.cut_rate) == (16.0, 5.0, 1.0)


def test_what_was_cut_short_is_finished_while_others_wait_for_their_backup():
    half = Behaviour((1.0,), np.array([0.0, 0.5]), np.array([0.0, 0.5]))
    slow = dataclasses.replace(FLAT, draft=LatencyCurve.of({1: 4.0}))
    waiting, going_on = (
        simulate(ssd(4, [1] * 5, batch=8, backup=how), slow, half, rounds=400) for how in ("draft", "none")
    )
    assert waiting.tokens_hit == pytest.approx(5.0, rel=0.01)
    assert going_on.tokens_hit < 4.5


def test_known_hit_rates_count_instead_of_ranks():
    known = dataclasses.replace(HALF, hits=(0.9, 0.4))
    plan = ssd(3, [1] * 4, early_answers=False)
    event, formula = simulate(plan, FLAT, known, rounds=4000), predict(plan, FLAT, known)
    assert event.hit_rate_after_primary == pytest.approx(0.9, abs=0.01)
    assert event.hit_rate_after_backup == pytest.approx(0.4, abs=0.04)
    assert event.hit_rate == pytest.approx(formula.hit_rate, abs=0.015)


def test_nothing_ready_is_a_miss():
    slow = dataclasses.replace(FLAT, draft=LatencyCurve.of({1: 30.0}))
    result = simulate(ssd(2, [1] * 3, backup="none"), slow, CERTAIN, rounds=50)
    assert result.hit_rate == 0.0
    assert result.tokens_per_round == 1.0


def test_missing_rows_wait_for_the_draft_but_not_for_nothing():
    drafted = simulate(ssd(3, [1] * 4, batch=8), FLAT, HALF, rounds=500)
    nothing = simulate(ssd(3, [1] * 4, batch=8, backup="none"), FLAT, HALF, rounds=500)
    assert drafted.wait_ms > 2.5
    assert nothing.wait_ms == pytest.approx(0.0)
    assert nothing.tokens_miss == 1.0
    assert drafted.tokens_per_round > nothing.tokens_per_round


def test_rows_without_a_speculation_make_the_verification_smaller():
    costs = dataclasses.replace(FLAT, target=LatencyCurve.of({1: 1.0, 101: 101.0}))
    nothing = simulate(ssd(3, [1] * 4, backup="none"), costs, HALF, rounds=2000)
    assert nothing.hit_rate is not None
    rows = 1 + 3 * nothing.hit_rate
    assert nothing.verify_ms == pytest.approx(rows, rel=0.03)


def test_a_target_that_is_disturbed_recovers_when_the_draft_is_done():
    costs = dataclasses.replace(FLAT, target_beside=LatencyCurve.of({1: 20.0}))
    result = simulate(ssd(4, [1] * 5), costs, CERTAIN, rounds=50)
    # 5 ms beside the draft do a quarter of the pass, the rest takes three quarters of 10 ms.
    assert result.verify_ms == pytest.approx(12.5)


def test_the_same_seed_gives_the_same_result():
    plan = ssd(3, [2, 1, 1, 2], batch=2)
    assert simulate(plan, FLAT, HALF, rounds=100, seed=3) == simulate(plan, FLAT, HALF, rounds=100, seed=3)
    assert simulate(plan, FLAT, HALF, rounds=100, seed=3) != simulate(plan, FLAT, HALF, rounds=100, seed=4)


@settings(max_examples=25, deadline=None)
@given(
    k=st.integers(1, 7),
    rate=st.floats(0.3, 0.95),
    after_miss=st.floats(0.3, 0.95),
    guesses=st.integers(1, 4),
    batch=st.sampled_from([1, 2, 4]),
    backup=st.sampled_from(["draft", "none", "random"]),
    draft_ms=st.floats(0.1, 0.8),
)
def test_agrees_with_the_closed_form_where_it_should(k, rate, after_miss, guesses, batch, backup, draft_ms):
    """A hidden draft, flat passes: then only chance differs, and Eq. 1 with Corollary 16 is exact for it.

    In a batch Corollary 16 averages products of rows that are alike; rows keep their origin for a while.
    """
    cdf = np.array([0.0, 0.6, 0.8, 0.9, 0.95])
    behaviour = Behaviour((rate,), cdf, cdf, after_miss=(after_miss,))
    costs = Costs(
        LatencyCurve.of({1: 10.0}),
        LatencyCurve.of({1: draft_ms}),
        service_ms=0.3,
        message_ms=0.2,
        host_ms=0.5,
    )
    plan = ssd(k, [guesses] * (k + 1), batch=batch, backup=backup, early_answers=False)
    event, formula = simulate(plan, costs, behaviour, rounds=4000), predict(plan, costs, behaviour)
    assert event.hit_rate == pytest.approx(formula.hit_rate, abs=0.015)
    assert event.tokens_per_round == pytest.approx(formula.tokens_per_round, rel=0.02)
    assert event.round_ms == pytest.approx(formula.round_ms, rel=0.02)
    assert event.tokens_per_s == pytest.approx(formula.tokens_per_s, rel=0.03)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("k", [1, 4])
def test_sd_agrees_with_the_closed_form(k, batch):
    plan = RoundPlan("sd", k, batch)
    event, formula = simulate(plan, FLAT, HALF), predict(plan, FLAT, HALF)
    assert event.round_ms == formula.round_ms
    assert event.tokens_per_s == pytest.approx(formula.tokens_per_s, rel=2e-3)


def test_a_draft_that_is_not_hidden_costs_the_same_in_both():
    slow = dataclasses.replace(FLAT, draft=LatencyCurve.of({1: 3.0}))
    plan = ssd(4, [1] * 5, early_answers=False)
    assert simulate(plan, slow, HALF, rounds=3000).tokens_per_s == pytest.approx(
        predict(plan, slow, HALF).tokens_per_s, rel=0.02
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "sdd"}, "did you mean 'sd"),
        ({"mode": "sd"}, "nearest valid value: 1"),
        ({"mode": "ssd", "num_speculative_tokens": 2, "fan_out": (1, 1)}, "K \\+ 1 numbers"),
        ({"mode": "ssd", "num_speculative_tokens": 1, "fan_out": (0, 0)}, "not all 0"),
        ({"mode": "ar", "batch": 0}, "at least 1"),
        ({"mode": "ar", "backup": "drafts"}, "did you mean 'draft'"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(PlanError, match=message):
        RoundPlan(**options)


def test_refuses_no_rounds():
    with pytest.raises(PlanError, match="nearest valid value: 1"):
        simulate(RoundPlan("ar"), FLAT, HALF, rounds=0)
