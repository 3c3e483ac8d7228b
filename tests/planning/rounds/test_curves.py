"""What the pictures show, by values that are known otherwise, and the files that are written."""

import dataclasses
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
from typer.testing import CliRunner

from sonoran.cli.main import app
from sonoran.errors import PlanError
from sonoran.planning.drawing import LOOKS, draw
from sonoran.planning.rounds.behaviour import Behaviour
from sonoran.planning.rounds.costs import Costs
from sonoran.planning.rounds.curves import (
    Point,
    equivalent_alpha,
    hits_by_budget,
    measured_points,
    study_passes,
    study_preset,
)
from sonoran.planning.rounds.formulas import predict
from sonoran.planning.rounds.plot import render_study
from sonoran.planning.rounds.presets import PRESETS, load_preset
from sonoran.planning.rounds.search import best_plans
from sonoran.theory.latency import LatencyCurve

COSTS = Costs(LatencyCurve(((1.0, 28.0), (8.0, 45.0))), LatencyCurve(((1.0, 7.0),)))


@pytest.fixture(scope="module")
def own():
    return study_passes(COSTS, 0.8, 1.5)


def test_the_frontier_is_the_best_plan_of_every_batch(own):
    [ar] = [p for p in own.frontier if p.mode == "ar" and p.batch == 1]
    assert ar.tokens_per_s == pytest.approx(1000 / 28) and not ar.beyond
    [sd] = [p for p in own.frontier if p.mode == "sd" and p.batch == 4]
    best = best_plans(COSTS, Behaviour.power_law((0.8,), 1.5), batch=4)["sd"]
    assert sd.tokens_per_s == best.averages.tokens_per_s
    assert sd.per_sequence == sd.tokens_per_s / 4
    assert sd.beyond  # four times K + 1 rows are more than 8


def test_the_same_place_has_the_same_speed_in_every_panel(own):
    by_alpha = next(p for p in own.by_alpha if p.x == 0.8)
    ar, ssd = (p.tokens_per_s for p in own.frontier if p.batch == 1 and p.mode in ("ar", "ssd"))
    assert by_alpha.ssd == pytest.approx(ssd / ar)
    assert max(p.ssd for p in own.last) == pytest.approx(ssd / ar)


def test_hits_by_hand():
    # F = 1 everywhere, one exponent: of ranks whose cdf is 1 - F^-r, made concave, half of h(2) hits.
    behaviour = Behaviour.power_law((0.5,), 1.0)
    hits = hits_by_budget(behaviour, COSTS, 1, 1.0, budgets=(2,))
    assert hits["uniform"] == [(2, pytest.approx(0.25))]
    assert hits["measured"][0][1] >= hits["uniform"][0][1]


@pytest.mark.parametrize("budget", [4, 9, 24])
def test_no_rule_hits_more_often_than_theorem_18(budget):
    hits = hits_by_budget(Behaviour.power_law((0.9, 0.7), 0.9), COSTS, 5, 0.9, budgets=(budget,))
    best = hits["measured"][0][1]
    assert all(best >= points[0][1] - 1e-12 for points in hits.values())


def test_an_alpha_is_found_again():
    for alpha in (0.0, 0.37, 0.9, 1.0):
        tokens = sum(alpha**i for i in range(7))
        assert equivalent_alpha(tokens, 6) == pytest.approx(alpha, abs=1e-9)
    with pytest.raises(PlanError, match="impossible with K = 6"):
        equivalent_alpha(7.5, 6)


def test_published_values_stand_where_they_were_published():
    study = study_preset(load_preset("llama-70b"))
    ssd = {p.batch: p.tokens_per_s for p in study.published if p.mode == "ssd"}
    assert (ssd[2], ssd[8], ssd[16]) == (514, 1384, 1979)
    assert (24, 0.88) in study.published_hits
    assert study.last_axis == "temperature"
    assert [p.x for p in study.published_last] == [0.0, 0.3, 0.7, 1.0]
    ratios = sorted(p.ssd for p in study.published_alpha)
    assert ratios[0] == pytest.approx(215 / 54.7) and ratios[-1] == pytest.approx(301 / 54.7)
    # A published point of SD lies on the curve, because its speed says what the acceptance was.
    preset = load_preset("llama-70b")
    scenario = next(s for s in preset.scenarios if s.name == "HumanEval")
    sd = predict(scenario.plans()["sd"], preset.costs(scenario), preset.behaviour(scenario))
    assert sd.tokens_per_s == pytest.approx(176, rel=0.01)


def test_where_temperatures_are_unknown_the_last_picture_is_over_k():
    study = study_preset(load_preset("qwen-32b"))
    assert [p.x for p in study.last] == [4, 5, 6, 7]
    assert [round(p.ssd * 97.4, 1) for p in study.published_last] == [210.9, 193.6, 175.3, 158.6]


def test_a_preset_of_one_scenario_is_drawn_over_k():
    preset = load_preset("qwen-32b")
    [one] = [s for s in preset.scenarios if s.name == "rerun, SSD K = 4"]
    alone = study_preset(dataclasses.replace(preset, scenarios=(one,)))
    assert [p.x for p in alone.last] == list(range(1, 13)) and alone.published_last == []
    # SD at the K of the scenario is what was published there.
    assert alone.last[one.sd_k - 1].sd == pytest.approx(141.4 / 97.4, rel=0.01)


@pytest.mark.parametrize("name", PRESETS)
def test_files(name, own):
    pytest.importorskip("matplotlib")
    study = study_preset(load_preset(name))
    svg = render_study(study)
    assert ElementTree.fromstring(svg).tag.endswith("svg") and svg == render_study(study)
    assert render_study(own, "png").startswith(b"\x89PNG\r\n")
    page = render_study(study, "html").decode()
    assert page.startswith("<!doctype html>") and page.count("<svg") == 1
    assert not re.search(r"""(src|href)=["'](?!#)|@import|url\((?!#)|<script""", page)


def test_labels_keep_clear_of_each_other_and_of_points():
    pytest.importorskip("matplotlib")
    from sonoran.planning.drawing import beside_points

    placed = []

    def paint(figure):
        axes = figure.subplots()
        points = [(i % 5 * 0.01, i // 5 * 0.01, f"label {i}") for i in range(25)]
        axes.plot(*zip(*[(x, y) for x, y, _ in points], strict=True), "o", ls="none")
        axes.set_xlim(-1, 1)
        axes.set_ylim(-1, 1)
        beside_points(axes, points)
        placed.extend(note.get_window_extent() for note in axes.texts)

    draw(paint, (4, 4), "png")
    assert 0 < len(placed) < 25
    assert not any(a.overlaps(b) for i, a in enumerate(placed) for b in placed[:i])


def test_modes_differ_without_colour():
    assert len({look.mark for look in LOOKS.values()}) == len(LOOKS)
    assert len({str(look.line) for look in LOOKS.values()}) == len(LOOKS)


def test_measurements_are_read():
    document = {
        "modes": {"ar": {"tokens_per_s": 20.0}, "ssd -k 4": {"tokens_per_s": 50}},
        "throughput": [{"mode": "ar", "batch": 4, "tokens_per_s": 60.0}],
    }
    assert measured_points(document) == [
        Point("ar", 1, 20.0), Point("ssd -k 4", 1, 50.0), Point("ar", 4, 60.0),
    ]  # fmt: skip
    for wrong in ([], {"modes": {"ar": {}}}, {"modes": {}, "throughput": [{"mode": "ar"}]}):
        with pytest.raises(PlanError):
            measured_points(wrong)


def test_the_command_draws(tmp_path):
    pytest.importorskip("matplotlib")
    run = CliRunner().invoke
    own = ["simulate", "--target-ms", "28,45", "--rows", "1,8", "--draft-ms", "7", "--alpha", "0.8"]
    measured = tmp_path / "m.json"
    measured.write_text(json.dumps({"modes": {"ssd": {"tokens_per_s": 77.25}}}))
    page = tmp_path / "own.html"
    result = run(app, [*own, "--plot", str(page), "--measured", str(measured), "--json"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)[0]["batch"] == 1
    assert "77.2" in page.read_text() and "measured" in page.read_text()
    for arguments, message in (
        (["--plot", str(tmp_path / "a.pdf")], "must end in .svg or .png or .html"),
        (["--measured", str(measured)], "--measured has no effect without --plot"),
        (["--plot", str(page), "--measured", str(tmp_path / "none.json")], "none.json"),
    ):
        refused = run(app, [*own, *arguments])
        assert refused.exit_code == 2 and message in " ".join(refused.stderr.split())
