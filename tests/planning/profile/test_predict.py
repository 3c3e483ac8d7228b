"""Predictions and choices from made-up profiles: what must be fastest is chosen, for the reason given."""

import dataclasses

import pytest

from sonoran.errors import PlanError
from sonoran.planning.profile.choose import choose
from sonoran.planning.profile.placement import Workload, placements
from sonoran.planning.profile.predict import predict_all
from tests.planning.profile.made_up import acceptance, profile

FEW = {"k_values": (1, 2, 4), "budgets": (1, 4, 8)}


def best(made_up, **workload):
    return choose(predict_all(made_up, Workload(**workload), **FEW))


def test_ar_is_the_pass_and_what_follows_it():
    predictions = predict_all(profile(), Workload(), **FEW)
    plain = {str(p.placement): p for p in predictions if p.mode == "ar"}
    # 40 ms on one core, host 0.2 ms, one row 0.1 ms.
    assert plain["0"].tokens_per_s == pytest.approx(1000 / 40.3)
    assert plain["0,1"].tokens_per_s == pytest.approx(1000 / 24.3)
    assert not plain["0"].extrapolated


def test_sd_by_hand():
    predictions = predict_all(profile(one_core=True, rate=1.0), Workload(), **FEW)
    [sd] = [p for p in predictions if p.mode == "sd" and p.num_speculative_tokens == 2]
    # Two draft passes with a token each, the first of 2 rows since all was accepted; a pass of 3 rows; 3 tokens,
    # all accepted and sampled.
    round_ms = (10.5 + 0.05) + (10.0 + 0.05) + 43.0 + 0.2 + 0.3
    assert sd.round_ms == pytest.approx(round_ms)
    assert sd.tokens_per_s == pytest.approx(3000 / round_ms)
    assert sd.uncertainty > 0.0


def test_every_mode_and_setting_is_there_and_sorted():
    predictions = predict_all(profile(), Workload(), **FEW)
    speeds = [p.tokens_per_s for p in predictions]
    assert speeds == sorted(speeds, reverse=True)
    assert {p.mode for p in predictions} == {"ar", "sd", "ssd"}
    split = [p for p in predictions if p.mode == "ssd"]
    assert {(p.num_speculative_tokens, p.budget, p.backup) for p in split} == {
        (k, b, backup) for k in (1, 2, 4) for b in (1, 4, 8) for backup in ("draft", "none")
    }
    assert all(sum(p.fan_out) == p.budget and len(p.fan_out) == p.num_speculative_tokens + 1 for p in split)
    assert all(0.0 <= p.hit_rate <= 1.0 and p.hidden is not None for p in split)
    assert {p.method for p in split} == {"formula", "simulation"}


def test_simulation_can_be_left_out():
    predictions = predict_all(profile(), Workload(), simulated=0, **FEW)
    assert {p.method for p in predictions} == {"formula"}


def test_hidden_drafting_wins_where_a_core_is_to_spare():
    choice = best(profile(both_cores=0.95), batch=1)
    assert choice.best.mode == "ssd"
    assert str(choice.best.placement) == "0 | 1"
    assert choice.best.hidden
    assert "fits behind verification" in choice.reason and "hit rate" in choice.reason
    assert choice.gain > choice.by_mode["sd"].tokens_per_s / choice.by_mode["ar"].tokens_per_s


def test_one_core_knows_no_ssd():
    choice = best(profile(one_core=True))
    assert choice.best.mode == "sd"
    assert set(choice.by_mode) == {"ar", "sd"}
    assert "pay for" in choice.reason


def test_a_useless_draft_is_not_used():
    choice = best(profile(rate=0.05, acceptances=(acceptance(0.05, guessable=0.05),)))
    assert choice.best.mode == "ar"
    assert choice.reason.startswith("do not speculate: AR on 0,1")
    assert choice.gain == 1.0


def test_rows_that_cost_as_much_as_passes_are_not_worth_it():
    choice = best(profile(target=(40.0, 36.0)))
    assert choice.best.mode == "ar"
    assert "yields" in choice.reason


def test_a_gain_within_the_error_is_no_reason():
    predictions = predict_all(profile(), Workload(), **FEW)
    assert choose(predictions, worth_it=10.0).best.mode == "ar"
    assert choose(predictions).best.mode != "ar"


def test_the_simpler_of_equals_is_taken():
    by_mode = best(profile()).by_mode
    fast = dataclasses.replace(by_mode["ssd"], tokens_per_s=100.0)
    simple = dataclasses.replace(by_mode["sd"], tokens_per_s=99.5)
    assert choose([by_mode["ar"], fast, simple]).best is simple
    assert choose([by_mode["ar"], fast, dataclasses.replace(simple, tokens_per_s=98.0)]).best is fast


def test_larger_batches_slow_down_by_rows():
    made_up = profile()
    one = predict_all(made_up, Workload(batch=1), **FEW)
    eight = predict_all(made_up, Workload(batch=8), **FEW)
    assert max(p.tokens_per_s for p in eight) > max(p.tokens_per_s for p in one)
    assert any(p.extrapolated for p in eight) and not any(p.extrapolated for p in one)

    # Whoever waits for one missing row of eight waits nearly always: no backup becomes worth more.
    def gain(predictions):
        speed = {
            p.backup: p.tokens_per_s
            for p in predictions
            if (p.mode, p.num_speculative_tokens, p.budget) == ("ssd", 4, 8)
        }
        return speed["none"] / speed["draft"]

    assert gain(eight) > gain(one)


def test_longer_contexts_are_slower():
    speeds = [
        {p.label: p.tokens_per_s for p in predict_all(profile(), Workload(context=context), **FEW)}
        for context in (256, 2048)
    ]
    for label, speed in speeds[0].items():
        assert speeds[1].get(label, 0.0) < speed


def test_sampling_times_follow_the_temperature():
    made_up = profile()
    slow = dataclasses.replace(made_up.sampling[1], row=dataclasses.replace(made_up.sampling[1].row, ms=5.0))
    made_up = dataclasses.replace(made_up, sampling=(made_up.sampling[0], slow))
    greedy, sampled = (
        choose(predict_all(made_up, Workload(temperature=t), **FEW)).by_mode["ar"] for t in (0.0, 0.7)
    )
    assert sampled.round_ms == pytest.approx(greedy.round_ms + 4.9)


def test_without_a_draft_there_is_only_ar():
    choice = best(dataclasses.replace(profile(), acceptance=()))
    assert set(choice.by_mode) == {"ar"}
    assert "no draft" in choice.reason


def test_short_texts_leave_out_long_speculations():
    made_up = profile(acceptances=(acceptance(0.8, texts=2, length=4),))
    used = {p.num_speculative_tokens for p in predict_all(made_up, Workload(), **FEW) if p.mode != "ar"}
    assert used == {1, 2}


def test_a_choice_needs_ar():
    predictions = [p for p in predict_all(profile(), Workload(), **FEW) if p.mode != "ar"]
    with pytest.raises(PlanError, match="no prediction of autoregressive"):
        choose(predictions)
    with pytest.raises(PlanError, match="no passes of the target alone"):
        predict_all(
            profile(), Workload(), where=[p for p in placements(profile()) if p.kind == "split"], **FEW
        )
