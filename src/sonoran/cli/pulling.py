"""The progress bar of a pull, for every command that may have to fetch a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars

from sonoran.cli.common import err
from sonoran.models.download import Progress, PullEvent

LABELS = {
    "waiting": "another process fetches it",
    "trying": "looking",
    "fetching": "fetching",
    "checking": "checking the hash",
}


@contextmanager
def pull_progress(console: Console = err) -> Iterator[Progress]:
    """Show one bar per model that is being fetched, and a line for every source that fails.

    Nothing is drawn for a model that is in the cache. Without a terminal only the lines appear.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bars = Bars(*columns, TimeRemainingColumn(), console=console, transient=True)
    tasks: dict[str, TaskID] = {}

    def show(event: PullEvent) -> None:
        if event.source == "cache":
            return
        bars.start()
        if event.stage == "failed":
            bars.console.print(
                f"{event.model}: {event.source} skipped: {event.detail}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
            return
        if event.stage == "done":
            bars.console.print(f"{event.model}: fetched from the {event.source}", highlight=False)
        if event.model not in tasks:
            tasks[event.model] = bars.add_task(event.model, total=event.total)
        label = f"{event.model} ({LABELS[event.stage]})" if event.stage in LABELS else event.model
        bars.update(tasks[event.model], description=label, completed=event.done)

    try:
        yield show
    finally:
        if bars.live.is_started:
            bars.stop()
