"""Cost models, and draft sizes when drafting is hidden."""

import numpy as np
import pytest

from sonoran.errors import PlanError
from sonoran.planning.scaling.costs import PUBLISHED_COST, ParameterCost, measured_cost_from_dict
from sonoran.planning.scaling.hidden import compare_hidden
from sonoran.planning.scaling.models import published_laws
from sonoran.planning.scaling.rates import SsdSettings, ssd_rate
from sonoran.planning.scaling.sensitivity import search_size
from sonoran.planning.scaling.throughput import tokens_per_round
from sonoran.theory.speedup import ssd_speedup

LAWS = published_laws()
LATENCIES = {
    "target": {"1": 40.0, "4": 46.0, "8": 60.0},
    "drafts": [
        {"name": "b", "parameters": 5e8, "milliseconds": {"1": 10.0, "8": 13.0}},
        {"name": "a", "parameters": 1e8, "milliseconds": {"1": 4.0, "8": 5.0}},
    ],
    "branches": 8,
}


@pytest.mark.parametrize(
    "cost,millions",
    [
        (ParameterCost(), 289.9),
        (ParameterCost(verify_slope=0.02), 388.3),
        (ParameterCost(verify_slope=0.1), 503.5),
        (ParameterCost(verify_slope=1.0), 749.4),
        (ParameterCost(draft_floor=0.01), 356.3),
        (ParameterCost(draft_floor=0.1), 503.5),
    ],
)
def test_sizes_under_other_costs(cost, millions):
    assert search_size(LAWS, cost, 70e9, 10**12.5, 10**12.5) / 1e6 == pytest.approx(millions, abs=0.06)


def test_measured_rows_are_interpolated_and_extended():
    cost = measured_cost_from_dict(LATENCIES)
    assert cost.unit == "ms"
    assert cost.verify(0, [0, 1, 3, 7, 9]) == pytest.approx([40, 42, 46, 60, 67])
    assert cost.draft(0, 1e8, 3) == pytest.approx(12)
    assert cost.draft(0, 3e8, 2) == pytest.approx(14)
    # No floor given: the line of the two smallest goes on.
    assert cost.draft(0, 5e7, 1) == pytest.approx(3.25)
    assert measured_cost_from_dict({**LATENCIES, "floor_ms": 0}).draft(0, 5e7, 1) == pytest.approx(2)
    assert cost.draft(0, 9e8, 1) == pytest.approx(16)
    # Trunk pass over 3 rows, then two passes over 8 branches.
    assert cost.predraft(0, 1e8, 2) == pytest.approx(4 + 2 / 7 + 2 * 5)


def test_one_draft_says_nothing_about_size():
    one = {"target": {"1": 40}, "drafts": [{"parameters": 1e9, "milliseconds": {"1": 4}}]}
    cost = measured_cost_from_dict(one)
    assert not cost.knows_size and measured_cost_from_dict({**one, "floor_ms": 1}).knows_size
    assert cost.draft(0, [1e8, 1e9, 2e9], 1) == pytest.approx([4, 4, 8])


def test_a_draft_that_is_not_hidden_delays_a_miss_too():
    # 10 ms to verify, 3 ms a draft pass, K = 5: the cache takes 18 ms, and a miss waits for it before it drafts.
    cost = measured_cost_from_dict(
        {"target": {"1": 10}, "drafts": [{"parameters": 1e9, "milliseconds": {"1": 3}}], "floor_ms": 3}
    )
    tokens = float(tokens_per_round(0.8, 5))
    rate = ssd_rate(cost, SsdSettings(0.8, "draft"), 0.8, 7e10, 1e9, 5)
    assert rate == pytest.approx(tokens / (0.8 * 18 + 0.2 * (18 + 15)))


@pytest.mark.parametrize("backup", ["draft", "none"])
def test_ssd_rate_is_theorem_7(backup):
    m, n, gamma, alpha, p = 7e10, 2e9, 6, 0.7, 0.8
    tokens = float(tokens_per_round(alpha, gamma))
    miss = (tokens, gamma * n / m) if backup == "draft" else (1.0, 0.0)
    expected = ssd_speedup(p, tokens, miss[0], (gamma + 1) * n / m, miss[1])
    rate = ssd_rate(PUBLISHED_COST, SsdSettings(p, backup), alpha, m, n, gamma)
    assert rate * 2 * m == pytest.approx(expected)


def test_without_hits_ssd_is_sd():
    found = compare_hidden(LAWS, PUBLISHED_COST, SsdSettings(0.0), 70e9, 15e12, 15e12)
    assert (found.ssd.parameters, found.ssd.gamma) == (found.sd.parameters, found.sd.gamma)
    assert found.ssd.throughput == pytest.approx(found.sd.throughput, rel=1e-14, abs=0)
    assert found.size_ratio == 1.0


def test_hidden_drafting_allows_larger_drafts():
    ratios, gains = [], []
    for rate in (0.5, 0.8, 0.9, 1.0):
        found = compare_hidden(LAWS, PUBLISHED_COST, SsdSettings(rate), 70e9, 15e12, 15e12)
        ratios.append(found.size_ratio)
        gains.append(found.ssd.speedup)
        assert found.break_even > found.ssd.parameters > found.sd.parameters
    assert ratios == sorted(ratios)
    assert gains == sorted(gains)
    # Always hidden: as large as fits behind one verification, gamma + 1 passes in the time of one.
    assert found.ssd.parameters == pytest.approx(found.hidden_limit, rel=1e-5)
    assert found.hidden_limit == pytest.approx(70e9 / (found.ssd.gamma + 1), rel=1e-9)


def test_break_even_is_where_ssd_stops_matching_sd():
    settings = SsdSettings(0.8)
    found = compare_hidden(LAWS, PUBLISHED_COST, settings, 70e9, 15e12, 15e12)
    gammas = np.arange(1, 65)

    def best(n):
        alpha = LAWS.alpha(70e9, 15e12, n, 15e12)
        return float(ssd_rate(PUBLISHED_COST, settings, alpha, 70e9, n, gammas).max())

    assert best(found.break_even * 0.999) > found.sd.throughput > best(found.break_even * 1.001)


def test_plain_steps_on_a_miss_can_lose_to_sd():
    found = compare_hidden(LAWS, PUBLISHED_COST, SsdSettings(0.5, "none"), 70e9, 15e12, 15e12)
    assert found.ssd.speedup < found.sd.speedup
    assert found.break_even == 0.0


@pytest.mark.parametrize(
    "change,words",
    [
        ({"target": {}}, "object of rows"),
        ({"target": {"2": 3.0}}, "1 row is missing"),
        ({"drafts": []}, "at least one"),
        ({"target": {"1": -2}}, "ms > 0"),
        ({"tarte": {}}, "did you mean 'target'"),
        ({"branches": 0}, "branches"),
        ({"drafts": [{"parameters": 5e8}]}, "needs"),
        ({"drafts": [3]}, "must be an object"),
        ({"drafts": [{"parameters": 5, "milliseconds": {"1": 3}}]}, "parameters must lie"),
    ],
)
def test_bad_latencies(change, words):
    with pytest.raises(PlanError, match=words):
        measured_cost_from_dict({**LATENCIES, **change})


def test_bad_shares_and_settings():
    with pytest.raises(PlanError, match="nearest valid value: 0"):
        ParameterCost(verify_slope=-0.1)
    with pytest.raises(PlanError, match="draft_factor"):
        ParameterCost(draft_factor=0)
    with pytest.raises(PlanError, match="hit_rate"):
        SsdSettings(1.5)
    with pytest.raises(PlanError, match="did you mean 'draft'"):
        SsdSettings(0.5, "drft")
