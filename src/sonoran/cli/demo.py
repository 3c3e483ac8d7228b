"""``sonoran demo``: the same prompt in AR, SD and SSD, live side by side, then the speeds and the proof."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sonoran.bench.lanes import Lane, plan_lanes
from sonoran.bench.race import LaneState, Race, Show, summary
from sonoran.bench.verdict import verdict
from sonoran.cli.common import JsonOption, command, err, examples, out, print_json, say
from sonoran.cli.options import Given, ModelOption, offers, options_of, sampling
from sonoran.cli.progress import load_progress
from sonoran.config import EngineConfig, SpeculativeConfig
from sonoran.errors import ConfigError
from sonoran.models.opening import LoadProgress
from sonoran.models.registry import DEFAULT_TARGET
from sonoran.sampling.params import SamplingParams

PROMPT = "Write a Python function that merges two sorted lists, and explain it in two sentences."
EXAMPLES = examples(
    "sonoran demo",
    'sonoran demo --prompt "Explain recursion" -n 200',
    "sonoran demo --cores 0-3 --draft-cores 4 --temperature 1 --json",
)
NOTE = (
    "One lane runs at a time: together they would slow each other down. AR, SD and the target of SSD have the same "
    "cores; SSD also has those of its draft{}."
)
REDRAW_S = 0.2
"""Seconds between two pictures. Drawing takes time from whatever runs, from every lane the same share."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("demo", epilog=EXAMPLES)(demo)


@command
@offers(
    options_of(SamplingParams, without=("verification",)),  # under rejection, texts do differ
    options_of(SpeculativeConfig, only=("num_speculative_tokens", "cores")),
    options_of(EngineConfig, only=("cores",)),
    temperature=0.0,
    seed=0,
    max_tokens=128,
)
def demo(
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="What to answer.")] = PROMPT,
    model: ModelOption = DEFAULT_TARGET,
    draft: Annotated[
        str,
        typer.Option("--draft", "-d", help="Draft of SD and SSD: auto, or a model.", rich_help_panel="Draft"),
    ] = "auto",
    *,
    given: Given,
    all_cores: Annotated[
        bool,
        typer.Option(
            "--all-cores/--no-all-cores",
            help="Also run AR on all these cores; loads the target again.",
            rich_help_panel="Machine",
        ),
    ] = True,
    json: JsonOption = False,
) -> None:
    """Let AR, SD and SSD answer the same prompt, one after the other, and compare speeds and texts."""
    if not prompt.strip():
        raise ConfigError("the prompt is empty")
    params, speculative = sampling(given[SamplingParams]), given[SpeculativeConfig]
    if params.max_tokens is None or params.max_tokens < 2:
        raise ConfigError(
            f"--max-tokens must be at least 2 for a speed to be measured, got {params.max_tokens}"
        )
    lanes = plan_lanes(
        cores=given[EngineConfig].get("cores"),
        draft_cores=speculative.pop("cores", None),
        draft=draft,
        all_cores=all_cores,
        **speculative,
    )
    live = out.is_terminal and not json
    with load_progress() as reporting:
        race = Race(model, lanes, reporting)
    with race, stage(lanes, live) as (show, loading):
        result = {"model": model, "prompt": prompt, **summary(race.run(prompt, params, show, loading))}
    beside = any(lane.cores != lanes[0].cores for lane in lanes)
    result["verdict"] = verdict(
        result["modes"], lanes[0].name, {lane.name: what_to_type(lane) for lane in lanes}
    )
    result["note"] = NOTE.format(", so AR on all of these cores is shown beside it" if beside else "")
    if json:
        print_json(result)
    else:
        report(result, with_text=not live)
    if not result["identical_texts"]:
        raise typer.Exit(1)


@contextmanager
def stage(lanes: Sequence[Lane], live: bool) -> Iterator[tuple[Show, LoadProgress | None]]:
    """Yield what shows the race and the loading: panels side by side on a terminal, else a line as a lane begins."""
    latest: dict[str, LaneState] = {}
    if not live:

        def announce(progress: LaneState) -> None:
            if progress.lane.name not in latest:
                err.print(f"{progress.lane.name}: {where(progress)}", soft_wrap=True)
            latest[progress.lane.name] = progress

        yield announce, None
        return
    # A thread that draws would compete with what is measured: pictures are drawn between two rounds.
    with Live(console=out, auto_refresh=False) as screen:
        drawn = 0.0

        def draw(status: str, at_once: bool) -> None:
            nonlocal drawn
            if at_once or time.monotonic() - drawn >= REDRAW_S:
                screen.update(picture(lanes, latest, status, out.width, out.height), refresh=True)
                drawn = time.monotonic()

        def show(progress: LaneState) -> None:
            begins = progress.lane.name not in latest
            latest[progress.lane.name] = progress
            draw(where(progress), begins)

        def loading(name: str, done: int, total: int) -> None:
            draw(f"loading {name}: {done / max(1, total):.0%}", False)

        try:
            yield show, loading
        finally:
            draw("", True)


def where(progress: LaneState) -> str:
    """Return where a lane runs; for SSD, also which process drafts."""
    if progress.worker_pid is None:
        return progress.lane.place
    return f"{progress.lane.place}; draft worker: process {progress.worker_pid}, kill it and the text stays"


def picture(
    lanes: Sequence[Lane], latest: dict[str, LaneState], status: str, width: int, height: int
) -> Group:
    """Return the lanes side by side, each with the end of its text that fits."""
    rows = max(4, min(24, height - 6))
    columns = max(16, width // len(lanes) - 5)
    grid = Table.grid(expand=True)
    panels = []
    for lane in lanes:
        grid.add_column(ratio=1)
        progress = latest.get(lane.name)
        running = progress is not None and next(reversed(latest)) == lane.name
        body = tail(progress.text, columns, rows) if progress is not None else ""
        speed = (
            f"{progress.tokens_per_s:.1f} tokens/s, {progress.num_tokens}"
            if progress is not None
            else "waits"
        )
        panels.append(
            Panel(
                Text(body, no_wrap=True, overflow="crop"),
                title=Text(lane.name),
                subtitle=speed,
                height=rows + 2,
                border_style="green" if running else "dim",
            )
        )
    grid.add_row(*panels)
    return Group(grid, Text(status, style="dim"))


def tail(text: str, columns: int, rows: int) -> str:
    """Return the last `rows` lines of a text broken at `columns`."""
    lines = []
    for line in text.expandtabs(4).split("\n"):
        lines += [line[i : i + columns] for i in range(0, max(1, len(line)), columns)]
    return "\n".join(lines[-rows:])


def report(result: dict[str, Any], *, with_text: bool) -> None:
    """Print the text if it was not shown yet, the table, and whether the texts are identical."""
    if with_text:
        say(result["text"])
    table = Table(box=None, header_style="bold")
    for title in ("mode", "tokens/s", "x AR", "per round", "hits", "sha256 of the token ids"):
        table.add_column(
            title, justify="right" if title in ("tokens/s", "x AR", "per round", "hits") else "left"
        )
    for name, mode in result["modes"].items():
        table.add_row(
            name,
            f"{mode['tokens_per_s']:.1f}",
            "-" if mode["speed_up"] is None else f"{mode['speed_up']:.2f}",
            "-" if mode["mean_acceptance_length"] is None else f"{mode['mean_acceptance_length']:.2f}",
            "-" if mode["hit_rate"] is None else f"{mode['hit_rate']:.0%}",
            mode["sha256"][:16],
        )
    out.print(table)
    count = len(result["modes"])
    if result["identical_texts"]:
        first = next(iter(result["modes"].values()))
        say(f"The {count} texts are identical, token by token ({first['num_tokens']} tokens):")
        say(f"sha256 {first['sha256']}")
    else:
        say(f"The {count} texts differ.", style="red")
    say(result["verdict"])
    say(result["note"], style="dim")
    say(
        "As a server, for a browser and for clients of OpenAI's interface: sonoran serve",
        style="dim",
    )


def what_to_type(lane: Lane) -> str:
    """Return the command that decodes as a lane does."""
    method = "ar" if lane.speculative is None else lane.speculative.method
    command = f"sonoran generate --mode {method} --cores {','.join(map(str, lane.cores))}"
    own = lane.speculative.cores if lane.speculative is not None and method == "ssd" else None
    return command + (f" --draft-cores {','.join(map(str, own))}" if own else "")
