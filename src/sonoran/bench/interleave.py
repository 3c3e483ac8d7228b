"""Interleaved measurement: noise of the machine hits everything that is compared alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sonoran.bench.stats import Summary, summarize

StepProgress = Callable[[str, int, int], None]
"""Called with what is being measured, the measurements done and the measurements in all."""


class Subject(Protocol):
    """An engine with a model in memory, measured beside others."""

    @property
    def name(self) -> str:
        """What it is, short."""
        ...

    def forward_seconds(self, rows: int) -> float:
        """Run one pass of `rows` rows behind the context, with logits for all; return its seconds."""
        ...

    def prefill_seconds(self) -> float:
        """Read the whole context in one go, with logits for its last token; return the seconds."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what a reader of the numbers wants to know about the engine."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


def round_robin(
    tasks: Mapping[str, Callable[[], float]],
    repeats: int,
    *,
    warmups: int = 1,
    settle: Callable[[], None] = lambda: time.sleep(0.005),
    progress: StepProgress | None = None,
) -> dict[str, Summary]:
    """Run every task once per round, in the same order; return the summary of each by its name.

    The first `warmups` rounds are thrown away. `settle` runs before each task, so that threads of the task
    before, which may spin a little while, are asleep.
    """
    values: dict[str, list[float]] = {name: [] for name in tasks}
    total = (warmups + repeats) * len(tasks)
    done = 0
    for turn in range(warmups + repeats):
        for name, task in tasks.items():
            settle()
            seconds = task()
            if turn >= warmups:
                values[name].append(seconds)
            done += 1
            if progress is not None:
                progress(name, done, total)
    return {name: summarize(measured) for name, measured in values.items()}


def task_names(subject: Subject, row_counts: Sequence[int]) -> dict[int, str]:
    """Return the name of each row count's task, as shown while it runs."""
    return {rows: f"{subject.name}, {rows} row{'s' if rows > 1 else ''}" for rows in row_counts}
