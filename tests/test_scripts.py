"""Every program in scripts/ does what its text says, on models and data made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gguf
import numpy as np
import pytest

from tests.planning.profile.made_up import profile
from tests.tiny_models import make_gguf

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path for path in (ROOT / "scripts").glob("*.py") if path.name != "card.py")
WRITTEN_TEXTS = "{http://www.w3.org/2000/svg}text"


def run(name: str, *arguments: Any) -> str:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / name), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def texts(svg: Path) -> str:
    return "\n".join("".join(node.itertext()) for node in ElementTree.parse(svg).iter(WRITTEN_TEXTS))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_tells_how_it_is_used(script: Path) -> None:
    assert "usage:" in run(script.name, "--help")


def mode(speed: float, rounds: int, draft_s: float, **speculation: float) -> dict[str, Any]:
    return {
        "place": "target on core 0",
        "num_tokens": 101,
        "tokens_per_s": speed,
        "speed_up": speed / 20.0,
        "sha256": "ab" * 32,
        "metrics": {
            "num_rounds": rounds,
            "time_s": {"draft": draft_s},
            "speculative_decoding": speculation,
        },
    }


def test_the_picture_of_a_race_has_every_lane_and_its_speed(tmp_path: Path) -> None:
    race = {
        "modes": {
            "AR": mode(20.0, 101, 0.0),
            "SD": mode(40.0, 26, 0.5),
            "SSD": mode(80.0, 26, 0.1, draft_hidden_s=0.9),
        },
        "identical_texts": True,
    }
    (tmp_path / "race.json").write_text(json.dumps(race))
    run(
        "race_picture.py",
        "--from",
        tmp_path / "race.json",
        "--out",
        tmp_path / "race.svg",
        "--caption",
        "here",
    )
    shown = texts(tmp_path / "race.svg")
    for expected in ("The same 101 tokens", "20.0 tokens/s", "40.0 tokens/s, 2.00 x AR", "5.0 s, 100 rounds"):
        assert expected in shown
    assert "All texts identical" in shown and "here" in shown
    assert (tmp_path / "race.svg").stat().st_size < 30_000


def test_the_chart_in_the_docs_is_that_of_the_data(tmp_path: Path) -> None:
    run("speed_chart.py", "--out", tmp_path / "speed.svg")
    assert (tmp_path / "speed.svg").read_text() == (ROOT / "docs" / "speed.svg").read_text(), (
        "docs/data/speed.json has changed: run scripts/speed_chart.py"
    )
    for processor in json.loads((ROOT / "docs" / "data" / "speed.json").read_text())["processors"]:
        for measured in processor["runs"]:
            assert measured["command"]
            for speed in measured["tokens_per_s"].values():
                assert f"{speed:.1f}" in texts(tmp_path / "speed.svg")


def test_facts_of_a_profile(tmp_path: Path) -> None:
    made = profile(rate=0.75)
    (tmp_path / "profile.json").write_bytes(made.to_json())
    printed = run("profile_facts.py", tmp_path / "profile.json", "-k", 3, "--budgets", "1,8")
    [acceptance] = made.acceptance
    assert f"{acceptance.rate:.2f} accepted" in printed
    assert "tokens per verification, K = 3" in printed
    small, large = (float(value) for value in printed.split("average of rounds")[1].split()[:2])
    assert 0.0 < small < large <= 1.0


def test_a_shuffled_draft_has_the_same_rows_in_another_order(tmp_path: Path) -> None:
    make_gguf(tmp_path / "draft.gguf", "qwen2", types="Q8_0")
    run("shuffle_draft.py", tmp_path / "draft.gguf", tmp_path / "shuffled.gguf")
    before, after = (gguf.GGUFReader(tmp_path / f"{name}.gguf").tensors for name in ("draft", "shuffled"))
    for one, other in zip(before, after, strict=True):
        if "ffn_down" not in one.name:
            assert np.array_equal(one.data, other.data)
            continue
        assert not np.array_equal(one.data, other.data)
        assert sorted(row.tobytes() for row in one.data) == sorted(row.tobytes() for row in other.data)


def test_configurations_are_compared_on_the_same_texts(tmp_path: Path) -> None:
    target, draft = tmp_path / "target.gguf", tmp_path / "draft.gguf"
    make_gguf(target, "qwen2", seed=1)
    make_gguf(draft, "qwen2", seed=2)
    rows = "\n".join(json.dumps({"task_id": str(i), "prompt": f"def f{i}():"}) for i in range(2))
    (tmp_path / "humaneval.jsonl").write_text(rows)
    speculative = json.dumps({"method": "sd", "model": str(draft), "least_chance": 0})
    result = json.loads(
        run(
            "compare.py", "--model", target, "--data-dir", tmp_path, "--num-prompts", 2, "--max-tokens", 8,
            "--config", "null", "--config", speculative, "--json",
        )
    )  # fmt: skip
    assert result["identical_texts"]
    plain, speculating = result["configurations"]
    assert plain["ratio"] == 1.0 and plain["acceptance_length"] is None
    assert speculating["acceptance_length"] >= 1.0


def test_the_check_of_a_gpu_runs_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    found = json.loads(run("gpu_check.py", "--device", "torch:cpu", "--shapes", "tiny", "--minutes", "0"))
    assert found["texts"]["identical"] is True
    assert found["dependent_rows"]["fixed"] == 0
