"""``sonoran bench start``: how long until the first token, from nothing."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import typer
from rich.table import Table

from sonoran.bench.machine import describe_processor
from sonoran.bench.start import measure_starts, planned
from sonoran.cli.common import JsonOption, command, examples, names, out, print_json
from sonoran.cli.options import ModelOption
from sonoran.cli.progress import step_progress
from sonoran.config import Method
from sonoran.errors import ConfigError, nearest
from sonoran.models.registry import DEFAULT_TARGET

EXAMPLES = examples(
    "sonoran bench start",
    "sonoran bench start --modes ar,ssd --repeats 5 --json",
)


@command
def start(
    model: ModelOption = DEFAULT_TARGET,
    modes: Annotated[str, typer.Option(help="Modes in turn; the first is what others are compared with.")] = (
        "ar,sd,ssd"
    ),
    prompt: Annotated[str, typer.Option(help="The prompt.")] = "Say hello in one word.",
    repeats: Annotated[int, typer.Option(help="Measured starts of each, after one that is not counted.")] = 3,
    json: JsonOption = False,
) -> None:
    """Time whole commands in turn: seconds to their first byte of output, and to their end.

    `sonoran --help`, then one token in each mode: with the packed weights of an earlier start in the cache (kept), and
    without (converted). Model files are in the page cache.
    """
    known = ("ar", *get_args(Method))
    wanted = names("--modes", modes)
    for mode in wanted:
        if mode not in known:
            raise ConfigError(f"unknown mode {mode!r}{nearest(mode, known)}")
    if repeats < 1:
        raise ConfigError(f"--repeats must be at least 1, got {repeats}")
    with step_progress() as progress:
        rows = measure_starts(planned(model, wanted, prompt), repeats, progress)
    result = {
        "starts": rows,
        "model": model,
        "prompt": prompt,
        "repeats": repeats,
        "processor": describe_processor(),
    }
    if json:
        print_json(result)
    else:
        show(result)


def show(result: dict[str, Any]) -> None:
    """Print a row for each command."""
    table = Table(box=None, header_style="bold")
    table.add_column("command")
    for title in ("first output s", "spread", "against the first mode", "end s"):
        table.add_column(title, justify="right")
    for row in result["starts"]:
        first, against = row["first_s"], row["against_first"]
        table.add_row(
            row["name"],
            f"{first['median']:.2f}",
            f"{first['min']:.2f} to {first['max']:.2f}",
            f"{against:.2f} x" if against is not None else "",
            f"{row['end_s']['median']:.2f}",
        )
    out.print(table)
