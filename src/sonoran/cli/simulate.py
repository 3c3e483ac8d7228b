"""``sonoran simulate``: rounds of AR, SD and SSD on a machine that need not be here, beside published values."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from sonoran.cli.common import JsonOption, command, err, examples, out, print_json, say
from sonoran.errors import PlanError
from sonoran.planning.rounds.presets import (
    PRESETS,
    Comparison,
    Preset,
    ScenarioResult,
    compare,
    load_preset,
    to_document,
)

EXAMPLES = examples(
    "sonoran simulate --preset llama-70b",
    "sonoran simulate --preset qwen-32b --json",
    "sonoran simulate --preset mine.json --rounds 10000",
)
MAX_ROUNDS = 1_000_000


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("simulate", epilog=EXAMPLES)(simulate)


@command
def simulate(
    preset: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(PRESETS)}, or a JSON file (docs/calibration.md).", metavar="NAME|FILE"
        ),
    ] = PRESETS[0],
    rounds: Annotated[int, typer.Option(help="Rounds of each run.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
    json: JsonOption = False,
) -> None:
    """Simulate AR, SD and SSD with a preset's latencies and acceptance; print published values beside."""
    if not 1 <= rounds <= MAX_ROUNDS:
        raise PlanError(f"--rounds must be from 1 to {MAX_ROUNDS}, got {rounds}")
    chosen = load_preset(preset)
    with err.status("simulating") as status:

        def show(name: str, done: int, total: int) -> None:
            status.update(Text(f"simulating {name} ({done + 1} of {total})"))

        answers = compare(chosen, rounds=rounds, seed=seed, progress=show)
    if json:
        print_json({**to_document(chosen, answers), "rounds": rounds, "seed": seed})
        return
    print_tables(chosen, answers)


def print_tables(preset: Preset, answers: list[ScenarioResult]) -> None:
    """Print one line per scenario: speeds, hit rate, round, each with its difference to what was published."""
    out.print(Text.assemble((preset.name, "bold"), f": {preset.description}"), soft_wrap=True)
    table = Table(box=None, header_style="bold")
    for title in ("run", "AR", "SD", "SSD", "SSD/SD", "hits", "round ms"):
        table.add_column(title, justify="left" if title == "run" else "right", no_wrap=title != "run")
    for answer in answers:
        sd, ssd = answer.value("sd").simulated, answer.value("ssd").simulated
        table.add_row(
            answer.scenario.name,
            *(_cell(answer.value(mode), "{:.1f}") for mode in ("ar", "sd", "ssd")),
            # SD at the edge of what was measured is an upper bound, and a ratio of bounds says nothing.
            "" if answer.extrapolated["sd"] else f"{ssd / sd:.2f}",
            _cell(answer.value("hit_rate"), "{:.2f}"),
            _cell(answer.value("ssd_round_ms"), "{:.1f}"),
        )
    out.print(table)
    say(
        "Tokens per second of the whole batch, hit rate and round of SSD; behind a value its difference to the "
        "published one, = where the published one went into the preset.",
        style="dim",
    )
    used = sorted({answer.scenario.source for answer in answers} & set(preset.sources))
    for name in used:
        say(f"{name}: {preset.sources[name]}", style="dim")
    for note in preset.notes:
        say(note, style="dim")
    farthest: dict[str, tuple[int, float]] = {}
    for beyond in (b for answer in answers for found in answer.extrapolated.values() for b in found):
        farthest[beyond.curve] = max(farthest.get(beyond.curve, (0, 0.0)), (beyond.rows, beyond.measured))
    if farthest:
        passes = ", ".join(f"{name} {rows} (of {known:g})" for name, (rows, known) in farthest.items())
        say(f"Beyond what was measured, the largest passes in rows: {passes}.", style="yellow")
        say("Where that concerns SD, its speed is an upper bound and no SSD/SD is given.", style="yellow")


def _cell(value: Comparison, form: str) -> str:
    text = form.format(value.simulated)
    if value.difference is None:
        return text
    return f"{text} =" if value.fitted else f"{text} {value.difference:+.1%}"
