"""``sonoran demo`` on tiny models: lanes, the proof, mistakes, and nothing left after Ctrl-C or a killed worker."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from sonoran import _native
from sonoran.bench.lanes import plan_lanes
from sonoran.bench.race import LaneState, Race, fingerprint, summary
from sonoran.cli import demo
from sonoran.errors import ConfigError
from sonoran.sampling.params import SamplingParams
from tests.tiny_models import make_gguf
from tests.worker.workers import leftovers, runs, wait_until

CORES = _native.available_cores()
SLOW_SSD = """
import time
from sonoran.cli.main import main
from sonoran.engine.core import EngineCore
from sonoran.drafting.ssd import SsdDrafter
step = EngineCore.step
def slow_step(core):
    time.sleep(0.1 * isinstance(core.drafter, SsdDrafter))
    return step(core)
EngineCore.step = slow_step
main()
"""
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("models")
    make_gguf(folder / "target.gguf", "qwen2", "Q8_0", seed=1)
    make_gguf(folder / "draft.gguf", "qwen2", "Q8_0", seed=2)
    return ["-m", str(folder / "target.gguf"), "-d", str(folder / "draft.gguf")]


@pytest.fixture
def private_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(folder)


def call(*arguments: str) -> Result:
    app = typer.Typer()
    demo.register(app)
    return CliRunner().invoke(app, [*arguments])


@two_cores
def test_every_lane_gives_the_same_text_and_the_proof_can_be_checked(
    models: list[str], private_tmp: Path
) -> None:
    result = call(*models, "--prompt", "hello world", "-n", "24", "--temperature", "1", "--json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    assert list(found["modes"]) == ["AR", "SD", "SSD", "AR, all cores"]
    assert found["identical_texts"] is True
    assert (
        found["verdict"].startswith("Fastest here: ") and "Type: sonoran generate --mode " in found["verdict"]
    )
    assert len({mode["sha256"] for mode in found["modes"].values()}) == 1
    assert found["modes"]["SSD"]["metrics"]["speculative_decoding"]["num_cache_lookups"] > 0
    assert found["modes"]["SD"]["hit_rate"] is found["modes"]["AR"]["mean_acceptance_length"] is None
    assert found["modes"]["AR"]["speed_up"] == 1.0
    assert "AR on all of these cores" in found["note"]
    assert leftovers(private_tmp) == []


@two_cores
def test_without_a_terminal_there_are_plain_lines(models: list[str]) -> None:
    result = call(*models, "--prompt", "hello", "-n", "8", "--no-all-cores")
    assert result.exit_code == 0, result.stderr
    assert "SSD: target on core" in result.stderr
    assert "draft worker: process" in result.stderr
    assert "\x1b" not in result.output
    assert "The 3 texts are identical" in result.stdout
    assert "AR, all cores" not in result.stdout
    assert "AR on all of these cores" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--prompt", " "), "the prompt is empty"),
        (("-n", "1"), "--max-tokens must be at least 2"),
        (("-k", "99"), "num_speculative_tokens"),
        (("--cores", "0", "--draft-cores", "0"), "need different cores"),
        (("--cores", "4096"), "cannot be used"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments: tuple[str, ...], text: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert text in result.stderr


@two_cores
def test_lanes_share_the_cores_of_the_target() -> None:
    lanes = plan_lanes(cores=str(CORES[0]), draft_cores=str(CORES[1]))
    assert [lane.cores for lane in lanes] == [(CORES[0],)] * 3 + [tuple(sorted(CORES[:2]))]
    assert lanes[0].speculative is None
    assert lanes[1].speculative is not None and lanes[1].speculative.cores is None
    assert lanes[2].speculative is not None and lanes[2].speculative.cores == (CORES[1],)
    assert plan_lanes(draft_cores=str(CORES[0]))[0].cores == tuple(CORES[1:])
    with pytest.raises(ConfigError, match="different cores"):
        plan_lanes(draft_cores=",".join(map(str, CORES)))


@two_cores
def test_a_worker_that_is_killed_in_the_middle_costs_no_character(
    models: list[str], private_tmp: Path
) -> None:
    lanes = plan_lanes(draft=models[3], all_cores=False)
    killed: list[int] = []

    def show(progress: LaneState) -> None:
        if progress.worker_pid is not None and progress.num_tokens > 20 and not killed:
            killed.append(progress.worker_pid)
            os.kill(progress.worker_pid, signal.SIGKILL)

    with Race(models[1], lanes) as race:
        found = summary(race.run("hello world", SamplingParams(temperature=0.0, max_tokens=120), show))
    assert killed
    assert found["identical_texts"]
    assert leftovers(private_tmp) == []


def test_the_fingerprint_is_that_of_the_decimal_ids() -> None:
    assert fingerprint([1, 22, 3]) == hashlib.sha256(b"1,22,3").hexdigest()


def test_the_picture_fits_and_shows_the_end_of_the_text() -> None:
    lanes = plan_lanes(all_cores=False)
    latest = {"AR": LaneState(lanes[0], "first\n" + "x" * 100 + "\nlast", 7, 12.34, None)}
    console = Console(file=io.StringIO(), width=90, height=14, force_terminal=False)
    console.print(demo.picture(lanes, latest, "loading draft: 50%", 90, 14))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert len(text.splitlines()) <= 14
    assert "last" in text and "12.3 tokens/s, 7" in text and "waits" in text and "loading draft: 50%" in text
    assert demo.tail("ab\ncdef\ng", 2, 3) == "cd\nef\ng"


@two_cores
def test_ctrl_c_leaves_nothing_behind(models: list[str], private_tmp: Path) -> None:
    arguments = [*models, "--prompt", "hello", "-n", "200", "--no-all-cores"]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_SSD, "demo", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = ""
        while "draft worker: process" not in line:
            line = process.stderr.readline()
            assert line, "the demo ended before SSD began"
        worker = int(line.partition("draft worker: process ")[2].partition(",")[0])
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        wait_until(lambda: not runs(worker), "the worker has gone")
    finally:
        process.kill()
        process.wait()
    assert leftovers(private_tmp) == []
