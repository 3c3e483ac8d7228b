"""Options that name a pair of models and its settings, and what they lead to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, cast, get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from sonoran.cli.common import err
from sonoran.cli.engine import load_progress
from sonoran.config import DraftQuantize, Quantize, parse_cores
from sonoran.errors import ConfigError, PlanError, nearest
from sonoran.planning.profile.pair import Pair, open_pair
from sonoran.planning.profile.passes import BudgetProgress
from sonoran.planning.profile.profile import Profile
from sonoran.planning.profile.store import load_profile

TargetOption = Annotated[
    str, typer.Option("--target", "-m", help="Target: a name, a GGUF file, a directory.")
]
PairDraftOption = Annotated[
    str, typer.Option("--draft", "-d", help="Draft: auto (the default draft), a model, or none.")
]
PairCores = Annotated[
    str | None, typer.Option("--cores", help="Cores that may be used: 0,2-5. Default: all.")
]
TargetPrecision = Annotated[str | None, typer.Option("--quantize", help="Precision of the target.")]
DraftPrecision = Annotated[
    str | None,
    typer.Option(
        "--draft-quantize",
        help="Precision of the draft: int3, int4, int8, bf16, file. Default int4; int3 for the default draft.",
    ),
]
DraftVocab = Annotated[
    int | None, typer.Option("--draft-vocab", help="Draft ids below this; default 32768, 0 for all.")
]


def stored(pair: Pair) -> Profile:
    """Return the profile of a pair. Raises PlanError when there is none."""
    profile = load_profile(pair.key)
    if profile is None:
        draft = pair.key.draft.name if pair.key.draft else "no draft"
        raise PlanError(
            f"{pair.key.target.name} with {draft} was not calibrated on this machine with these settings; "
            "run: sonoran calibrate with the same options"
        )
    return profile


def open_from_options(
    target: str,
    draft: str,
    cores: str | None,
    quantize: str | None,
    draft_quantize: str | None,
    draft_vocab: int | None,
) -> Pair:
    """Open the pair that the options name. Raises ConfigError, ModelError, DownloadError, CompatibilityError."""
    for option, value, known in (
        ("--quantize", quantize, get_args(Quantize)),
        ("--draft-quantize", draft_quantize, get_args(DraftQuantize)),
    ):
        if value is not None and value not in known:
            raise ConfigError(f"unknown {option} {value!r}{nearest(value, known)}")
    if draft_vocab is not None and draft_vocab < 0:
        raise ConfigError(f"--draft-vocab must be at least 0 (the whole vocabulary), got {draft_vocab}")
    if draft == "none" and (draft_quantize is not None or draft_vocab is not None):
        raise ConfigError("--draft-quantize and --draft-vocab need a draft; leave out --draft none")
    with load_progress() as reporting:
        return open_pair(
            target,
            None if draft == "none" else draft,
            cores=parse_cores(cores),
            quantize=cast("Quantize | None", quantize),
            draft_quantize=cast("DraftQuantize | None", draft_quantize),
            draft_vocab=draft_vocab,
            reporting=reporting,
        )


@contextmanager
def budget_progress(console: Console = err) -> Iterator[BudgetProgress]:
    """Show what is being measured and the share of the budget that is spent, on a terminal only."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    # A thread that draws would take the processor from what is measured: draw when told instead.
    bars = Bars(
        *columns, console=console, transient=True, disable=not console.is_terminal, auto_refresh=False
    )
    with bars:
        task = bars.add_task("calibrating", total=1.0)

        def show(what: str, share: float) -> None:
            bars.update(task, description=what, completed=share, refresh=True)

        yield show
