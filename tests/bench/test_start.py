"""Timing whole commands."""

import sys

import pytest

from sonoran.backends.packed import SETTING
from sonoran.bench.start import Start, StartError, measure_starts, planned, time_start

PYTHON = (sys.executable, "-c")


def test_the_first_byte_comes_before_the_end() -> None:
    program = "import sys, time; print('a', flush=True); sys.stdin.read(); time.sleep(0.05); print('b')"
    first, end = time_start(Start("x", (program,)), PYTHON)
    assert 0 < first < end


def test_a_command_has_its_own_environment() -> None:
    start = Start(
        "x", ("import os, sys; print('yes') if os.environ['HOW'] == 'so' else sys.exit(3)",), {"HOW": "so"}
    )
    time_start(start, PYTHON)


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(StartError, match=r"status 3: it was so"):
        time_start(
            Start("x", ("import sys; print('out'); print('it was so', file=sys.stderr); sys.exit(3)",)),
            PYTHON,
        )
    with pytest.raises(StartError, match="said nothing"):
        time_start(Start("x", ("pass",)), PYTHON)


def test_every_mode_is_timed_with_and_without_kept_weights() -> None:
    starts = planned("m", ["ar", "ssd"], "Hi", ["--cores", "0"])
    assert [start.name for start in starts] == [
        "--help",
        "ar, kept",
        "ar, converted",
        "ssd, kept",
        "ssd, converted",
    ]
    assert starts[3].arguments == ("generate", "Hi", "-m", "m", "--mode", "ssd", "-n", "1", "--cores", "0")
    assert [start.environment for start in starts[3:]] == [{}, {SETTING: "off"}]


def test_the_first_round_is_not_counted_and_ratios_compare_the_same_state() -> None:
    seconds = {"--help": 0.25, "ar, kept": 2.0, "ar, converted": 4.0, "ssd, kept": 3.0, "ssd, converted": 5.0}
    calls: list[str] = []
    steps: list[tuple[int, int]] = []

    def timed(start: Start) -> tuple[float, float]:
        calls.append(start.name)
        cold = 100.0 if len(calls) <= len(seconds) else 0.0
        return seconds[start.name] + cold, 2 * seconds[start.name] + cold

    rows = measure_starts(
        planned("m", ["ar", "ssd"], "Hi"), 2, lambda _, done, total: steps.append((done, total)), timed
    )
    assert calls == 3 * list(seconds)
    assert steps[0] == (0, 15) and steps[-1] == (15, 15)
    assert {row["name"]: row["first_s"]["median"] for row in rows} == seconds
    assert [row["end_s"]["median"] for row in rows] == [2 * value for value in seconds.values()]
    assert [row["against_first"] for row in rows] == [None, 1.0, 1.0, 1.5, 1.25]
    assert all(row["first_s"]["count"] == 2 for row in rows)
