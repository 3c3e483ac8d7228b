"""What the sub-commands of ``sonoran bench`` share: lists of numbers, the progress line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from sonoran.bench.interleave import StepProgress
from sonoran.cli.common import err
from sonoran.errors import ConfigError


def numbers(option: str, text: str) -> list[int]:
    """Read a list such as ``1,2,4``. Raises ConfigError naming the option and the bad part."""
    values = []
    for part in text.split(","):
        if not part.strip().isdigit():
            raise ConfigError(f"{option} {text!r}: cannot read {part.strip()!r}; write numbers like 1,2,4")
        values.append(int(part))
    return values


def names(option: str, text: str) -> list[str]:
    """Read a list such as ``ar,sd``. Raises ConfigError for an empty entry or a repetition."""
    values = [part.strip() for part in text.split(",")]
    if not all(values) or len(set(values)) < len(values):
        raise ConfigError(f"{option} {text!r}: write different names, separated by commas")
    return values


@contextmanager
def step_progress(console: Console = err) -> Iterator[StepProgress]:
    """Show one bar over all measurements on standard error, on a terminal only."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # A thread that draws would take the processor from what is measured: draw once per step instead.
    bars = Bars(
        *columns, console=console, transient=True, disable=not console.is_terminal, auto_refresh=False
    )
    with bars:
        task = bars.add_task("measuring", total=None)

        def show(name: str, done: int, total: int) -> None:
            bars.update(task, description=name, completed=done, total=total, refresh=True)

        yield show
