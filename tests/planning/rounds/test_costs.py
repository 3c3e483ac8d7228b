"""Costs of rounds: what is used where nothing else was measured, and what is refused."""

import pytest

from sonoran.errors import PlanError
from sonoran.planning.rounds.costs import Costs


def test_costs_fall_back_to_the_undisturbed_curves():
    costs = Costs.from_mapping(
        {
            "target": {"1": 10.0, "5": 14.0},
            "draft": {"1": 2.0},
            "token_ms": 0.5,
            "guess_ms": 0.25,
            "row_ms": 0.1,
        }
    )
    assert costs.verify_ms(3) == costs.verify_ms(3, beside=True) == 12.0
    assert costs.draft_ms(2) == costs.tree_ms(2) == 3.0
    assert costs.trunk_ms(4, 2) == 2.5
    assert costs.after_pass_ms(5) == 0.5
    assert costs.tree_ms(0) == 0.0


def test_costs_use_what_was_measured_beside():
    costs = Costs.from_mapping(
        {"target": {"1": 10.0}, "target_beside": {"1": 13.0}, "draft": {"1": 2.0}, "draft_beside": {"1": 3.0},
         "tree": {"1": 4.0}, "trunk": {"1": 5.0}}
    )  # fmt: skip
    assert (costs.verify_ms(1), costs.verify_ms(1, beside=True)) == (10.0, 13.0)
    assert (costs.draft_ms(1), costs.draft_ms(1, beside=True)) == (2.0, 3.0)
    assert (costs.tree_ms(1), costs.trunk_ms(1)) == (4.0, 5.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"target": {"1": 1.0}}, "costs need 'draft'"),
        ({"target": {"1": 1.0}, "draft": {"1": 1.0}, "mesage_ms": 1.0}, "did you mean 'message_ms'"),
        ({"target": {"1": 1.0}, "draft": {"1": 1.0}, "message_ms": -1.0}, "nearest valid value: 0"),
    ],
)
def test_costs_refuse(values, message):
    with pytest.raises(PlanError, match=message):
        Costs.from_mapping(values)
