"""The command from calibration to explanation, over tiny models and a cache of its own."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sonoran import _native
from sonoran.cli import calibrate
from sonoran.cli.calibrate import parse_seconds, read_prompts
from sonoran.errors import ConfigError
from sonoran.planning.profile.profile import VERSION
from tests.tiny_models import make_gguf

CORE = str(_native.available_cores()[0])


def run(*arguments):
    app = typer.Typer()
    calibrate.register(app)

    @app.callback()
    def root() -> None:
        pass

    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)], env={"COLUMNS": "120"})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate")
    for name, seed in (("target", 0), ("draft", 1)):
        make_gguf(folder / f"{name}.gguf", "qwen2", types="Q8_0", seed=seed)
    (folder / "prompts.txt").write_text("def add(a, b):\nhello there\n")
    return folder


@pytest.fixture(scope="module")
def pair(tiny):
    return ("--target", tiny / "target.gguf", "--draft", tiny / "draft.gguf", "--cores", CORE)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SONORAN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def calibrated(tiny, pair):
    result = run(*pair, "--budget", "1s", "--prompts", tiny / "prompts.txt", "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_calibration_is_kept(calibrated, pair):
    assert {(c["batch"], c["temperature"]) for c in calibrated["choices"]} == {
        (1, 0.0),
        (8, 0.0),
        (1, 1.0),
        (8, 1.0),
    }
    assert all(c["gain"] >= 1.0 and c["reason"] for c in calibrated["choices"])
    result = run("show", *pair, "--json")
    assert result.exit_code == 0, result.stderr
    shown = json.loads(result.stdout)
    assert shown["digest"] == calibrated["digest"]
    assert shown["profile"]["version"] == VERSION and shown["profile"]["acceptance"]


def test_show_prints_tables(calibrated, pair):
    result = run("show", *pair)
    assert result.exit_code == 0, result.stderr
    for part in (
        "ms of a pass by rows",
        "coupled, 0",
        "rejection, 1",
        "batch 8, temperature 1:",
        "target " + CORE,
    ):
        assert part in result.stdout


def test_show_all(calibrated):
    result = run("show", "--all")
    assert result.exit_code == 0 and "target.gguf + draft.gguf" in result.stdout
    listed = json.loads(run("show", "--all", "--json").stdout)
    assert calibrated["digest"] in [summary["digest"] for summary in listed]


def test_explain_predicts_runs_and_draws(calibrated, pair, tmp_path):
    pytest.importorskip("matplotlib")
    result = run("explain", *pair, "--verify", 2, "--top", 4, "--plot", tmp_path / "why.svg", "--json")
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert len(answer["candidates"]) == 4
    assert answer["choice"]["label"] in [c["label"] for c in answer["candidates"]]
    assert len(answer["verified"]) == 2
    measured = [c["measured_tokens_per_s"] for c in answer["candidates"]]
    assert sum(value is not None and value > 0 for value in measured) == 2
    assert (tmp_path / "why.svg").read_text().startswith("<?xml")
    # What was run stays in the profile.
    assert len(json.loads(run("show", *pair, "--json").stdout)["profile"]["measured"]) == 2


def test_explain_prints_a_table(calibrated, pair):
    result = run("explain", *pair, "--batch", 4, "--temperature", 1)
    assert result.exit_code == 0, result.stderr
    assert "x AR" in result.stdout and "tokens/s predicted" in result.stdout


def test_without_a_draft(tiny):
    result = run("--target", tiny / "target.gguf", "--draft", "none", "--cores", CORE, "--budget", "1s")
    assert result.exit_code == 0, result.stderr
    assert "there is no draft to speculate with" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "1h"), "--budget '1h' cannot be read"),
        (("--budget", "0.2"), "the budget must be at least 1 s"),
        (("--prompts", "humanevel"), "did you mean 'humaneval'"),
        (("--data-dir", "."), "--data-dir without a data set"),
        (("--draft-quantize", "int2"), "unknown --draft-quantize 'int2'"),
        (("--draft-vocab", "-1"), "--draft-vocab must be at least 0"),
        (("--draft", "none", "--draft-vocab", "5"), "need a draft"),
        (("--temperature", "-1"), "temperatures must be >= 0"),
        (("--budget", "2s", "show"), "--budget must stand behind 'show'"),
        (("explain", "--verification", "couplet"), "did you mean 'coupled'"),
        (("explain", "--top", "0"), "--top must be at least 1"),
        (("explain", "--plot", "x.pdf"), "must end in .svg or .png"),
        (("explain", "--batch", "0"), "a workload needs batch >= 1"),
    ],
)
def test_refuses(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_without_a_profile(tiny):
    result = run("show", "--target", tiny / "draft.gguf", "--draft", "none")
    assert result.exit_code == 2
    assert "run: sonoran calibrate" in " ".join(result.stderr.split())


def test_times_and_prompts():
    assert (parse_seconds("90"), parse_seconds("90s"), parse_seconds("1.5m")) == (90.0, 90.0, 90.0)
    assert len(read_prompts("built-in", None)) == 8
    with pytest.raises(ConfigError, match="less than a day"):
        parse_seconds("100000")
