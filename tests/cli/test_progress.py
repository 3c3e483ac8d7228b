"""Bars: on a terminal only, under names that are not read as markup."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from rich.console import Console

from sonoran.cli.progress import load_progress, pull_progress, share_progress, step_progress, weights_progress
from sonoran.models.download import PullEvent

NAME = "a [bold]model[/bold] [/]"


def shown(bars: Callable[[Console], AbstractContextManager[Any]], *arguments: Any, terminal: bool) -> str:
    console = Console(
        file=io.StringIO(), force_terminal=terminal, width=120, markup=False, emoji=False, highlight=False
    )
    with bars(console) as report:
        report(*arguments)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    ("bars", "arguments", "texts"),
    [
        (pull_progress, (PullEvent(NAME, "fetching", 50, 100),), (f"{NAME} (fetching)", "50/100 bytes")),
        (weights_progress, (NAME, 50, 100), (f"loading {NAME}", "50/100 bytes")),
        (step_progress, (NAME, 3, 7), (NAME, "3/7")),
        (share_progress, (NAME, 0.25), (NAME, "25%")),
    ],
)
def test_bars_are_for_terminals(bars: Any, arguments: tuple[Any, ...], texts: tuple[str, ...]) -> None:
    drawn = shown(bars, *arguments, terminal=True)
    assert all(text in drawn for text in texts)
    assert shown(bars, *arguments, terminal=False) == ""


def test_what_happened_to_a_pull_is_said_everywhere() -> None:
    failed = PullEvent(NAME, "failed", 0, 100, "hub", "no [route]")
    for terminal in (True, False):
        assert f"{NAME}: hub skipped: no [route]" in shown(pull_progress, failed, terminal=terminal)
    assert shown(pull_progress, PullEvent(NAME, "done", 1, 1, "cache"), terminal=True) == ""


def test_loading_shows_both() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, markup=False, highlight=False)
    with load_progress(console) as reporting:
        assert reporting.pull is not None and reporting.load is not None
        reporting.load(NAME, 1, 2)
        reporting.pull(PullEvent("another", "fetching", 1, 2))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"loading {NAME}" in text and "another (fetching)" in text
