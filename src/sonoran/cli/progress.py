"""Bars for long work, on standard error and on a terminal only: fetching, loading, measuring."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from sonoran.cli.common import err
from sonoran.models.download import Progress as PullProgress
from sonoran.models.download import PullEvent
from sonoran.models.opening import LoadProgress, Reporting

LABELS = {
    "waiting": "another process fetches it",
    "trying": "looking",
    "fetching": "fetching",
    "checking": "checking the hash",
}


class Bars:
    """Bars by name, drawn from the first that moves on. ``live`` False draws when told and never in between: a thread
    that draws would take the processor from what is measured."""

    def __init__(self, console: Console, *columns: ProgressColumn, live: bool = True) -> None:
        self.console = console
        self._live = live
        name = TextColumn("{task.description}", markup=False)
        self._progress = Progress(
            name, BarColumn(), *columns, console=console, transient=True, auto_refresh=live
        )
        self._tasks: dict[str, TaskID] = {}

    def show(self, name: str, done: float, total: float | None, label: str | None = None) -> None:
        """Move a bar on; `label` is what it is called for now."""
        if not self.console.is_terminal:
            return
        if name not in self._tasks:
            self._progress.start()
            self._tasks[name] = self._progress.add_task(label or name, total=total)
        self._progress.update(
            self._tasks[name], description=label or name, completed=done, total=total, refresh=not self._live
        )

    def __enter__(self) -> Bars:
        return self

    def close(self) -> None:
        """Take the bars away."""
        if self._tasks:  # without a terminal, stopping prints an empty line
            self._progress.stop()

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def pull_progress(console: Console = err) -> Iterator[PullProgress]:
    """Show one bar per model that is being fetched, and a line for every source that fails.

    Nothing is drawn for a model that is in the cache. Without a terminal only the lines appear.
    """
    with Bars(console, DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as bars:

        def show(event: PullEvent) -> None:
            if event.source == "cache":
                return
            if event.stage == "failed":
                console.print(f"{event.model}: {event.source} skipped: {event.detail}", soft_wrap=True)
                return
            if event.stage == "chosen":
                console.print(f"{event.model}: {event.detail}", soft_wrap=True)
            if event.stage == "done":
                console.print(f"{event.model}: fetched from the {event.source}", soft_wrap=True)
            label = f"{event.model} ({LABELS[event.stage]})" if event.stage in LABELS else event.model
            bars.show(event.model, event.done, event.total, label)

        yield show


@contextmanager
def weights_progress(console: Console = err) -> Iterator[LoadProgress]:
    """Show one bar per file whose weights are read."""
    with Bars(console, DownloadColumn()) as bars:
        yield lambda name, done, total: bars.show(name, done, total, f"loading {name}")


@contextmanager
def load_progress(console: Console = err) -> Iterator[Reporting]:
    """Show bars for models that are fetched and for weights that are read."""
    with pull_progress(console) as pulling, weights_progress(console) as loading:
        yield Reporting(pull=pulling, load=loading)


LONG_PROMPT = 256
"""A prompt of more tokens takes several passes, so that there is something to show."""


class Reading:
    """The bar of a prompt that is being read. ``read`` may be called from another thread than the rest."""

    def __init__(self, bars: Bars, num_tokens: int) -> None:
        self._bars, self._total, self._done = bars, num_tokens, 0
        self._lock = threading.Lock()
        self._ended = num_tokens <= LONG_PROMPT
        self._show()

    def read(self, count: int) -> None:
        """Move on by so many tokens."""
        self._done += count
        self._show()

    def end(self) -> None:
        """Take the bar away, before anything else is written."""
        with self._lock:
            self._ended = True
            self._bars.close()

    def _show(self) -> None:
        with self._lock:
            if not self._ended:
                self._bars.show("prompt", self._done, self._total, "reading the prompt")


@contextmanager
def reading_progress(num_tokens: int, console: Console = err) -> Iterator[Reading]:
    """Show a bar while a long prompt is read."""
    with Bars(console, MofNCompleteColumn(), TextColumn("tokens"), live=False) as bars:
        reading = Reading(bars, num_tokens)
        try:
            yield reading
        finally:
            reading.end()


@contextmanager
def step_progress(console: Console = err) -> Iterator[Callable[[str, int, int], None]]:
    """Show one bar over all measurements, named after the present one."""
    with Bars(console, MofNCompleteColumn(), TimeRemainingColumn(), live=False) as bars:
        yield lambda name, done, total: bars.show("measuring", done, total, name)


@contextmanager
def share_progress(console: Console = err) -> Iterator[Callable[[str, float], None]]:
    """Show what is being measured, and the share of the time that is spent."""
    with Bars(console, TaskProgressColumn(), TimeElapsedColumn(), live=False) as bars:
        yield lambda what, share: bars.show("calibrating", share, 1.0, what)
