"""docs/statistics.md names every statistic, docs/ssd.md every rule of fan-out and every backup."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from sonoran.config import Backup, FanOutRule
from sonoran.engine.drafter import DraftAnswer, DraftRound
from sonoran.engine.outputs import request_output
from sonoran.engine.stats import CacheStats, EngineStats
from sonoran.worker import connection
from tests.engine.helpers import engine, greedy, model_drafter
from tests.worker.local import LocalDrafter, toy_model

DOCS = Path(__file__).parents[1] / "docs"


def missing(names: Any, page: str = "statistics.md") -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return [name for name in names if f"`{name}`" not in text]


def test_every_rule_and_backup_is_explained() -> None:
    assert missing(get_args(FanOutRule), "ssd.md") == []
    assert missing(get_args(Backup), "ssd.md") == []


def test_every_metric_of_a_request_and_of_the_engine_is_explained() -> None:
    core = engine(drafter=model_drafter())
    request = core.prepare("a", [0, 1, 2], greedy(8))
    core.add(request)
    while core.busy:
        core.step()
    metrics = request_output(request, core.num_speculative_tokens).metrics
    assert missing(metrics) == []
    assert missing(metrics["time_s"]) == []
    assert missing(metrics["speculative_decoding"]) == []
    totals = core.statistics()
    assert set(totals) > set(EngineStats().as_dict(4))
    assert missing(set(totals) - {"drafter"}) == []
    core.close()


def test_every_statistic_of_the_cache_is_explained() -> None:
    stats = CacheStats()
    stats.record_round(DraftRound(0.1), 0.2)
    stats.record_answer(DraftAnswer("primary", "draft", (1,)), 2)
    found = stats.as_dict()
    assert missing(found) == []
    assert missing(found["draft_wait"]) == []
    assert missing(found["draft_wait"]["hit"]) == []


def test_every_statistic_of_the_worker_is_explained() -> None:
    found = LocalDrafter(toy_model()).stats()
    assert missing(found) == []
    assert missing(found["connection"]) == []
    assert missing(found["worker"]) == []


def test_every_counter_of_the_connection_is_explained() -> None:
    assert missing(field.name for field in fields(connection.Counters)) == []
    assert missing(get_args(connection.State)) == []
