"""``sonoran check-draft`` on tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from sonoran.cli import check_draft
from tests.tiny_models import make_gguf


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    paths = {name: folder / f"{name}.gguf" for name in ("target", "draft", "other")}
    make_gguf(paths["target"], "qwen2", "Q8_0")
    make_gguf(paths["draft"], "qwen2", "Q8_0", num_layers=1, max_position=256, vocab_size=352)
    paths["other"].write_bytes(paths["draft"].read_bytes().replace(b"<|im_end|>", b"<|im_END|>"))
    return {name: str(path) for name, path in paths.items()}


def call(*arguments: str) -> Result:
    app = typer.Typer()
    check_draft.register(app)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def test_padding_and_a_shorter_context_forbid_nothing(models: dict[str, str]) -> None:
    result = call(models["target"], models["draft"])
    assert result.exit_code == 0, result.stderr
    assert "may draft: yes" in result.stdout
    assert "320 and 352 rows: padding" in result.stdout
    assert "the draft sees 256 tokens, the target 512" in result.stdout


def test_the_first_differing_tokens_are_named(models: dict[str, str]) -> None:
    result = call(models["target"], models["other"])
    assert result.exit_code == 1
    assert "may draft: no" in result.stdout
    assert "'<|im_end|>' in the target and '<|im_END|>' in the draft" in result.stdout


def test_the_json_document(models: dict[str, str]) -> None:
    yes = json.loads(call(models["target"], models["draft"], "--json").stdout)
    assert yes["compatible"] is True
    assert (yes["target"]["context"], yes["draft"]["context"]) == (512, 256)
    assert yes["draft"]["padding"] - yes["target"]["padding"] == 32
    assert len(yes["notes"]) == 2
    result = call(models["target"], models["other"], "--json")
    no = json.loads(result.stdout)
    assert result.exit_code == 1
    assert no["compatible"] is False
    assert no["differences"][0]["target"] == "<|im_end|>"
    assert no["num_differences"] == len(no["differences"]) == 1


def test_a_draft_that_is_not_smaller_is_pointed_out(models: dict[str, str]) -> None:
    assert "not smaller than the target" in call(models["target"], models["target"]).stdout


def test_a_missing_model_is_an_error(models: dict[str, str], tmp_path: Path) -> None:
    result = call(models["target"], str(tmp_path / "none.gguf"))
    assert result.exit_code == 2
    assert "no such file" in result.stderr
