import pytest

from sonoran.bench.interleave import round_robin
from sonoran.bench.stats import Summary, ratio, summarize
from sonoran.errors import ConfigError


def test_summary_of_several_values():
    # Quartiles of 1..5 are 2 and 4: the spread is (4 - 2) / 3.
    assert summarize([5.0, 1.0, 3.0, 2.0, 4.0]) == Summary(3.0, 1.0, 5.0, pytest.approx(2 / 3), 5)


def test_one_value_has_no_spread():
    assert summarize([7.0]) == Summary(7.0, 7.0, 7.0, 0.0, 1)


def test_nothing_measured_is_refused():
    with pytest.raises(ConfigError, match="at least one repeat"):
        summarize([])


def test_ratio():
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(3.0, 0.0) is None


def test_tasks_take_turns_and_warm_up_is_thrown_away():
    order = []

    def task(name, values):
        def run():
            order.append(name)
            return values.pop(0)

        return run

    steps = []
    result = round_robin(
        {"a": task("a", [100.0, 1.0, 3.0]), "b": task("b", [200.0, 5.0, 5.0])},
        2,
        settle=lambda: order.append("settle"),
        progress=lambda *step: steps.append(step),
    )
    assert order == ["settle", "a", "settle", "b"] * 3
    assert result["a"].median == 2.0
    assert (result["b"].min, result["b"].max, result["b"].count) == (5.0, 5.0, 2)
    assert steps[0] == ("a", 1, 6)
    assert steps[-1] == ("b", 6, 6)
