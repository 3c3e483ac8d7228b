"""The budget: how many guesses are made, by each rule and from what was measured."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sonoran.ssd.budget import RoundCosts, best_budget, largest_hidden_budget, shortest_round
from sonoran.ssd.outcomes import outcome_probabilities


def log(*chances: float) -> np.ndarray:
    return np.log(np.array(chances))


def draft_ms(pass_ms: Callable[[int], float], trunk_rows: int, steps: int) -> Callable[[int], float]:
    return lambda branches: pass_ms(trunk_rows) + steps * pass_ms(branches)


def hidden(pass_ms: Callable[[int], float], verification_ms: float, k: int, **options: int) -> int:
    trunk_rows = options.get("sequences", 1) * (k + 1)
    costs = RoundCosts(draft_ms(pass_ms, trunk_rows, k), verification_ms, 0.0, 1.0, 1.0)
    return largest_hidden_budget(costs, **options)


def linear(rows: int) -> float:
    return 8.0 + rows


def test_largest_hidden_budget_by_hand() -> None:
    # trunk (8 + 4) + 3 * (8 + B) <= 59  =>  B <= 7
    assert hidden(linear, 59.0, 3) == 7
    assert hidden(linear, 10.0, 3) == 1
    assert hidden(linear, 1e9, 3) == 32
    # Two sequences share the passes: 8 + 8 + 3 * (8 + 2 B) <= 60
    assert hidden(linear, 60.0, 3, sequences=2) == 3


@given(
    st.lists(st.floats(0.1, 9.0), min_size=80, max_size=80), st.floats(0.0, 80.0), st.integers(1, 6),
)  # fmt: skip
def test_the_largest_hidden_budget_is_hidden_and_largest(
    increments: list[float], verify: float, k: int
) -> None:
    def latency(rows: int) -> float:
        return sum(increments[:rows])

    budget = hidden(latency, verify, k, limit=64)

    def fits(b: int) -> bool:
        return latency(k + 1) + k * latency(b) <= verify

    assert fits(budget) or budget == 1
    assert budget == 64 or not fits(budget + 1)


def hits(budget: int) -> float:
    return 1.0 - (budget + 1.0) ** -1.0


def costs(slope: float, backup_ms: float = 25.0) -> RoundCosts:
    return RoundCosts(draft_ms(lambda rows: 6.0 + slope * rows, 5, 4), 40.0, backup_ms, 4.5, 4.0)


def test_free_guesses_are_all_taken_and_dear_ones_are_not() -> None:
    assert best_budget(costs(0.0), hits) == 32
    assert best_budget(costs(5.0), hits) < best_budget(costs(0.5), hits) < 32


def test_a_dear_miss_is_worth_more_guesses() -> None:
    assert best_budget(costs(1.0, backup_ms=0.0), hits) <= best_budget(costs(1.0, 25.0), hits)
    assert best_budget(costs(1.0, 25.0), hits) < best_budget(costs(1.0, 250.0), hits)


def test_guesses_that_do_not_help_are_not_made() -> None:
    assert best_budget(costs(0.0), lambda budget: 0.5) == 1


def chosen(
    probabilities: list,
    draft: Callable[[int], float],
    backup_ms: float,
    loss_ms: float = 0.0,
    limit: int = 32,
) -> int:
    return shortest_round(probabilities, RoundCosts(draft, 40.0, backup_ms, 1.0 + loss_ms, 1.0), 1.0, limit)


def test_more_guesses_while_they_save_more_than_they_cost() -> None:
    text = [outcome_probabilities([log(0.5, 0.3, 0.1, 0.06, 0.04), log(1.0)], "coupled")]
    assert chosen(text, lambda branches: 10.0, 20.0) == 5
    assert chosen(text, lambda branches: 10.0, 20.0, limit=3) == 3

    # Beyond the verification's 40 ms a guess costs 2.2 ms: 0.3 of 20 ms pays, 0.1 does not.
    def slow(branches: int) -> float:
        return 60.0 + 2.2 * branches

    assert chosen(text, slow, 20.0) == 2
    assert chosen(text, slow, 0.0, loss_ms=30.0) == 3
    assert chosen(text, slow, 0.0) == 1


def test_a_batch_waits_for_one_miss_as_for_many() -> None:
    def slow(branches: int) -> float:
        return 60.0 + 4.0 * branches

    one = outcome_probabilities([log(0.5, 0.5), log(1.0)], "coupled")
    assert chosen([one], slow, 30.0) == 2
    # Sequences that miss anyway make the batch wait, whatever the others guess.
    hopeless = [np.array([0.0]), np.array([0.01])]
    assert chosen([one, hopeless], slow, 30.0) == 2
