"""The command: output, files, exit codes, messages without tracebacks."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sonoran.cli import plan as plan_module
from sonoran.planning.scaling.models import data_text

root = typer.Typer()


@root.callback()
def _root():
    """Parent of the group, as in the real command."""


plan_module.register(root)


def run(*arguments):
    return CliRunner().invoke(root, ["plan", *arguments])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_json_plan():
    result = run("--target-params", "70B", "--target-tokens", "15e12", "--draft-tokens", "18T", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["optimum"]["parameters"] == pytest.approx(281807610, rel=1e-6)
    assert document["optimum"]["interval"]["low"] < 281e6 < document["optimum"]["interval"]["high"]
    assert {note["code"] for note in document["notes"]} >= {"target_perplexity", "scatter"}


def test_text_plan_with_files(folder):
    result = run("--target", "Qwen2.5/72B", "--plot", "a.svg", "--report", "b.html", "--draws", "50")
    assert result.exit_code == 0, result.output
    assert "best draft N*" in result.output
    assert "Qwen2.5/0.5B" in result.output
    assert Path("a.svg").read_text().endswith("</svg>\n")
    assert Path("b.html").read_text().startswith("<!doctype html>")


def test_none_pays_is_an_answer(folder):
    Path("c.json").write_text('[{"name": "slow", "parameters": 6e10, "alpha": 0.3}]')
    result = run("--target-params", "70B", "--candidates", "c.json", "--draws", "0", "--json")
    document = json.loads(result.stdout)
    assert document["best_candidate"] is None
    assert "None of the candidates pays" in document["sentence"]


def test_latencies_and_laws(folder):
    Path("l.json").write_text(
        json.dumps(
            {"target": {"1": 40, "8": 48}, "drafts": [{"parameters": 5e8, "milliseconds": {"1": 9, "8": 10}}]}
        )
    )
    result = run("--target", "Qwen2.5/1.5B", "--latencies", "l.json", "--draws", "10", "--json")
    assert json.loads(result.stdout)["cost_unit"] == "ms"
    clash = run("--target", "Qwen2.5/1.5B", "--latencies", "l.json", "--draft-floor", "0.1")
    assert clash.exit_code == 2


@pytest.mark.parametrize("table,rows", [(3, 5), (5, 39), (9, 3)])
def test_reproduce_json(table, rows):
    document = json.loads(run("reproduce", "--table", str(table), "--json").stdout)
    assert document["table"] == table
    assert len(document["rows"]) == rows
    assert set(document["rows"][0]) >= {"published", "computed", "relative_difference"}
    assert document["max_relative_difference"] < 1e-3


def test_reproduce_all():
    document = json.loads(run("reproduce", "--json").stdout)
    assert [table["table"] for table in document["tables"]] == [3, 4, 5, 6, 8, 9]
    assert len(document["corrections"]) >= 6
    text = run("reproduce").output
    assert "Table 5" in text
    assert "largest relative difference" in text


def test_fit_writes_laws_that_plan_reads(folder):
    Path("pairs.csv").write_text(data_text("paper_measurements.csv"))
    result = run("fit", "pairs.csv", "--loss", "hoffmann")
    assert result.exit_code == 0, result.output
    assert "130 pairs, 13 targets, 10 drafts" in result.output
    assert json.loads(Path("pairs.laws.json").read_text())["quality"]["r2"] == pytest.approx(
        0.602296, abs=1e-6
    )
    answer = run(
        "--target-params",
        "70B",
        "--target-tokens",
        "3.1622776601683795e12",
        "--laws",
        "pairs.laws.json",
        "--json",
    )
    document = json.loads(answer.stdout)
    assert document["laws_source"] == "pairs.csv"
    assert document["optimum"]["parameters"] / 1e6 == pytest.approx(265.5, abs=0.1)
    assert run("fit", "pairs.csv").exit_code == 2
    again = run("fit", "pairs.csv", "--force", "--json")
    assert json.loads(again.stdout)["output"] == "pairs.laws.json"


def test_a_plane_that_rises_with_draft_perplexity_is_not_written(folder):
    rows = [f"d{i},t{j},{10 + i},{8 + j},{0.3 + 0.05 * i + 0.02 * j}" for i in range(3) for j in range(3)]
    header = "draft,target,draft_perplexity,target_perplexity,alpha"
    Path("odd.csv").write_text("\n".join([header, *rows]))
    result = run("fit", "odd.csv")
    assert result.exit_code == 2
    assert "not negative" in result.output
    assert not Path("odd.laws.json").exists()


@pytest.mark.parametrize(
    "arguments,words",
    [
        ((), "give the target"),
        (("--target-params", "x"), "cannot read 'x'"),
        (("--target-params", "-3"), "must lie in"),
        (("--target", "Quen2.5/72B"), "did you mean 'Qwen2.5'"),
        (("--target-params", "70B", "--plot", "a.gif"), ".svg or .png"),
        (
            ("--target-params", "70B", "--candidates", "none.json"),
            "the candidates file none.json: cannot be read",
        ),
        (("--target-params", "70B", "--candidates", ","), "empty"),
        (("--target-params", "70B", "--report", "a.txt"), ".html"),
        (("--target-params", "70B", "--laws", "none.json"), "the laws file none.json: cannot be read"),
        (("--target-params", "70B", "--plot", "no/such/a.svg"), "cannot write"),
        (("reproduce", "--table", "7"), "table 7"),
        (("fit", "none.csv"), "the measurements file none.csv: cannot be read"),
        (("fit", "none.txt"), ".csv or .json"),
    ],
)
def test_bad_input(folder, arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output
