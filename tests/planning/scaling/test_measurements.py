"""Reading measurements, and the laws file they become."""

import json

import pytest

from sonoran.errors import PlanError
from sonoran.planning.scaling.acceptance import fit_measurements
from sonoran.planning.scaling.laws import (
    fit_warnings,
    laws_from_fit,
    laws_from_json,
    laws_to_dict,
)
from sonoran.planning.scaling.measurements import measurement_to_dict, parse_measurements
from sonoran.planning.scaling.models import published_measurements
from sonoran.planning.scaling.throughput import tokens_per_round
from sonoran.planning.scaling.uncertainty import left_out_error

HEADER = "draft,target,draft_perplexity,target_perplexity,alpha\n"
COUNTS = "draft,target,draft_perplexity,target_perplexity,gamma,rounds,accepted\n"


def document():
    points = published_measurements()
    fit = fit_measurements(list(points))
    return laws_to_dict(fit, laws_from_fit(fit, points, source="paper"))


def test_csv_and_json_agree():
    points, warnings = parse_measurements(HEADER + "a, t, 12.5, 8, 0.6\n\nb,t,14,8,.5\n", form="csv")
    assert [(p.draft, p.target, p.x, p.y, p.alpha) for p in points] == [
        ("a", "t", 12.5, 8, 0.6),
        ("b", "t", 14, 8, 0.5),
    ]
    assert warnings == []
    text = json.dumps({"measurements": [measurement_to_dict(p) for p in points]})
    assert parse_measurements(text, form="json")[0] == points


def test_counts_of_several_lengths_become_one_alpha():
    lines = [f"a,t,12,8,{g},1000,{1000 * (float(tokens_per_round(0.65, g)) - 1)}" for g in (1, 4, 8)]
    points, _ = parse_measurements(COUNTS + "\n".join(lines), form="csv")
    assert len(points) == 1
    assert points[0].alpha == pytest.approx(0.65, abs=1e-9)


@pytest.mark.parametrize(
    "text,words",
    [
        ("", "file is empty"),
        (HEADER, "no rows"),
        ("draft,target,alpha\na,t,.5\n", "missing column: draft_perplexity, target"),
        ("draft,target,draft_perplexity,target_perplexity\na,t,9,8\n", "missing column: alpha, or gamma"),
        (HEADER.replace("alpha", "aplha") + "a,t,9,8,.5\n", "'aplha' is unknown; did you mean 'alpha'"),
        (HEADER + "a,t,9,8,.5\na,t,9,8,.6\n", "line 3: a with t was already given at line 2"),
        (HEADER + "a,t,9,8,1.5\n", "line 2: alpha must lie strictly between 0 and 1, got 1.5"),
        (HEADER + "a,t,0.5,8,.5\n", "line 2: draft_perplexity must be above 1"),
        (HEADER + "a,t,x,8,.5\n", "line 2: draft_perplexity is not a number: 'x'"),
        (HEADER + "a,t,nan,8,.5\n", "line 2: draft_perplexity is not finite"),
        (HEADER + "a,,9,8,.5\n", "line 2: target is empty"),
        (HEADER + "a,t,9,8,.5,7\n", "line 2: more fields"),
        (
            COUNTS + "a,t,9,8,4,10,60\n",
            "accepted must lie strictly between 0 and gamma x rounds = 40, got 60",
        ),
        (COUNTS + "a,t,9,8,2.5,10,6\n", "gamma must be a whole number"),
        (COUNTS + "a,t,9,8,4,10,6\na,t,9,8,4,10,7\n", "line 3: a with t was already given"),
    ],
)
def test_bad_csv(text, words):
    with pytest.raises(PlanError, match=words):
        parse_measurements(text, form="csv")


@pytest.mark.parametrize(
    "text,words",
    [
        ("{", "not valid JSON: line 1"),
        ("3", "must be a list"),
        ("[3]", "entry 1 must be an object"),
        ('[{"draft": "a"}]', "entry 1: key: target"),
        ('[{"draft":"a","x":1}]', "'x' is unknown"),
    ],
)
def test_bad_json(text, words):
    with pytest.raises(PlanError, match=words):
        parse_measurements(text, form="json")


def test_all_problems_are_listed_up_to_a_point():
    with pytest.raises(PlanError) as caught:
        parse_measurements(HEADER + "".join(f"a{i},t,9,8,2\n" for i in range(20)), form="csv")
    assert "line 2:" in str(caught.value)
    assert "and 15 more" in str(caught.value)


def test_two_perplexities_of_one_model_are_a_warning():
    _, warnings = parse_measurements(HEADER + "a,t,12,8,.6\na,u,13,9,.6\n", form="csv")
    assert warnings == ["draft a has perplexity 12 at line 2 and 13 at line 3"]


def test_laws_file_round_trip():
    laws = laws_from_json(json.dumps(document()))
    fit = fit_measurements(list(published_measurements()))
    assert laws.acceptance == fit.plane
    assert laws.measurements == published_measurements()
    assert laws.residual_sd == pytest.approx(0.0363, abs=1e-4)
    assert laws.x_range == fit.x_range


@pytest.mark.parametrize(
    "change,words",
    [
        ({"format": "x"}, "not a laws file"),
        ({"version": 9}, "version 9"),
        ({"plain": 1}, "did you mean 'plane'"),
        ({"plane": {"A": -1, "B": 0}}, "plane lacks C"),
        ({"plane": {"A": 0.1, "B": 0, "C": 0}}, "A must be negative"),
        ({"range": {"draft_perplexity": [1, 2]}}, "target_perplexity must be a list"),
        ({"quality": None}, "'quality'"),
        ({"range": {"draft_perplexity": [3, 2], "target_perplexity": [1, 2]}}, "reversed"),
        ({"loss": 3}, "'loss'"),
    ],
)
def test_bad_laws_files(change, words):
    with pytest.raises(PlanError, match=words):
        laws_from_json(json.dumps({**document(), **change}))


def test_left_out_targets_are_harder_than_the_residuals_say():
    points = list(published_measurements())
    error = left_out_error(points)
    assert error > fit_measurements(points).regression.residual_sd
    assert left_out_error([p for p in points if p.target in ("OPT-13B", "OPT-30B")]) is None


def test_small_fits_come_with_warnings():
    points = [p for p in published_measurements() if p.target in ("OPT-13B", "OPT-66B")][::5]
    warnings = " ".join(fit_warnings(fit_measurements(points), points))
    assert "only 4 pairs" in warnings
    assert "only 2 targets" in warnings
    full = list(published_measurements())
    assert fit_warnings(fit_measurements(full), full) == []
