"""docs/ssd.md names every option and every statistic of SSD."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sonoran.config import SpeculativeConfig
from sonoran.drafting.ssd import Faults
from sonoran.engine.drafter import DraftAnswer, DraftRound
from sonoran.engine.stats import CacheStats
from tests.worker.local import make_speculator, toy_model

TEXT = (Path(__file__).parents[1] / "docs" / "ssd.md").read_text(encoding="utf-8")


def missing(names: Any) -> list[str]:
    return [name for name in names if f"`{name}`" not in TEXT]


def test_every_option_is_explained() -> None:
    options = [
        f.name for f in dataclasses.fields(SpeculativeConfig) if "ssd" in f.metadata.get("methods", ())
    ]
    assert missing([*options, "num_speculative_tokens", "verification"]) == []


def test_every_statistic_is_explained() -> None:
    stats = CacheStats()
    stats.record_round(DraftRound(0.1), 0.2)
    stats.record_answer(DraftAnswer("primary", "draft", (1,)), 2)
    found = stats.as_dict()
    assert missing(found) == []
    assert missing(found["draft_wait"]["hit"]) == []
    assert missing(dataclasses.asdict(Faults())) == []
    assert missing(make_speculator(toy_model()).stats()) == []
