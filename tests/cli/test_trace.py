"""``sonoran trace`` on a tiny model: a valid file with both lanes, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from sonoran.cli import trace
from tests.engine.test_trace import check_trace
from tests.tiny_models import make_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    make_gguf(path, "qwen2", "Q8_0", seed=1)
    return str(path)


def call(*arguments: str) -> Result:
    app = typer.Typer()
    trace.register(app)
    return CliRunner().invoke(app, [*arguments])


def test_ssd_has_two_lanes(model: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    result = call(
        "hello", "-m", model, "-d", model, "-n", "12", "--out", str(file), "--json", "--threads", "1"
    )
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    events = check_trace(file.read_text(encoding="utf-8"))
    lanes = {lane: [e["name"] for e in events if e["cat"] == lane] for lane in ("target", "draft worker")}
    assert lanes["target"].count("round") == found["lanes"]["target"]["round"]["count"]
    assert found["lanes"]["target"]["round"]["count"] == found["metrics"]["num_rounds"]
    replies = lanes["draft worker"].count("reply")
    assert replies == found["metrics"]["speculative_decoding"]["num_cache_lookups"] > 0
    assert json.loads(file.read_text(encoding="utf-8"))["otherData"]["speculative_config"]["method"] == "ssd"


def test_other_modes_have_the_target_alone(model: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    result = call("hello", "-m", model, "--mode", "ar", "-n", "5", "-o", str(file), "--threads", "1")
    assert result.exit_code == 0, result.stderr
    assert {e["cat"] for e in check_trace(file.read_text(encoding="utf-8"))} == {"target"}
    assert "target: round 5 x" in result.stderr
    assert "ui.perfetto.dev" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("hello", "--out", "/nowhere/trace.json"), "cannot write /nowhere/trace.json"),
        (("hello", "--mode", "sd", "--budget", "3"), "--budget is for SSD"),
        (("hello", "--mode", "nothing"), "unknown mode 'nothing'"),
        ((), "give a prompt"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(model: str, arguments: tuple[str, ...], text: str) -> None:
    result = call(*arguments, "-m", model)
    assert result.exit_code == 2
    assert text in result.stderr
