"""``sonoran simulate``: rounds of AR, SD and SSD on a machine that need not be here, beside published values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.table import Table
from rich.text import Text

from sonoran.cli.common import (
    JsonOption,
    command,
    err,
    examples,
    numbers,
    out,
    print_json,
    read,
    remark,
    say,
    suffix,
    write,
)
from sonoran.errors import PlanError
from sonoran.models.untrusted import parse_json, refusing
from sonoran.planning.drawing import FORMS, Form
from sonoran.planning.rounds.behaviour import Behaviour
from sonoran.planning.rounds.costs import Costs
from sonoran.planning.rounds.curves import Point, Study, measured_points, study_passes, study_preset
from sonoran.planning.rounds.presets import (
    PRESETS,
    Comparison,
    Preset,
    ScenarioResult,
    compare,
    load_preset,
    to_document,
)
from sonoran.planning.rounds.search import Found, best_plans
from sonoran.theory.latency import LatencyCurve

OWN = "Passes of your own"

EXAMPLES = examples(
    "sonoran simulate --preset llama-70b",
    "sonoran simulate --preset qwen-32b --json",
    "sonoran simulate --preset mine.json --rounds 10000",
    "sonoran simulate --preset llama-70b --plot llama.html",
    "sonoran simulate --target-ms 28,45 --rows 1,8 --draft-ms 7 --alpha 0.8",
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
    target_ms: Annotated[
        str | None,
        typer.Option(
            help="Instead of a preset: ms of a target pass by --rows.", metavar="MS,MS", rich_help_panel=OWN
        ),
    ] = None,
    rows: Annotated[
        str, typer.Option(help="Rows of these passes.", metavar="N,N", rich_help_panel=OWN)
    ] = "1",
    draft_ms: Annotated[
        str | None,
        typer.Option(help="Ms of a draft pass by --draft-rows.", metavar="MS,MS", rich_help_panel=OWN),
    ] = None,
    draft_rows: Annotated[
        str, typer.Option(help="Rows of the draft's passes.", metavar="N,N", rich_help_panel=OWN)
    ] = "1",
    alpha: Annotated[
        float | None,
        typer.Option(help="Chance that a drafted token is accepted.", rich_help_panel=OWN),
    ] = None,
    batch: Annotated[
        str,
        typer.Option(help="Sequences at a time; several with commas.", metavar="N,N", rich_help_panel=OWN),
    ] = "1",
    rank_exponent: Annotated[
        float,
        typer.Option(
            help="How fast misses fall with the fan-out F, as F^-r (SSD paper, Definition 11).",
            rich_help_panel=OWN,
        ),
    ] = 1.5,
    message_ms: Annotated[
        float, typer.Option(help="Round trip of a message between target and draft.", rich_help_panel=OWN)
    ] = 0.2,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw throughput by batch, hits, and speed-ups: .svg, .png or .html."),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="Draw these measurements too: what bench decode --json or --report wrote."),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of each run.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
    json: JsonOption = False,
) -> None:
    """Simulate AR, SD and SSD with a preset's latencies and acceptance; print published values beside.

    With --target-ms, --draft-ms and --alpha: find the best K of SD, and K, budget and backup of SSD, for these passes.
    """
    form = suffix(plot, FORMS, "--plot")
    if measured is not None and plot is None:
        raise PlanError("--measured has no effect without --plot; name a picture to draw it into")
    points = [] if measured is None else read_measured(measured)
    given = {"--target-ms": target_ms, "--draft-ms": draft_ms, "--alpha": alpha}
    if any(value is not None for value in given.values()):
        missing = [name for name, value in given.items() if value is None]
        if target_ms is None or draft_ms is None or alpha is None:
            raise PlanError(f"passes of your own need {', '.join(missing)} too")
        costs = Costs(
            curve("--target-ms", target_ms, "--rows", rows),
            curve("--draft-ms", draft_ms, "--draft-rows", draft_rows),
            message_ms=message_ms,
        )
        search(costs, Behaviour.power_law((alpha,), rank_exponent), numbers("--batch", batch), json)
        if plot is not None:
            draw_study(study_passes(costs, alpha, rank_exponent), points, plot, form)
        return
    if not 1 <= rounds <= MAX_ROUNDS:
        raise PlanError(f"--rounds must be from 1 to {MAX_ROUNDS}, got {rounds}")
    chosen = load_preset(preset)
    with err.status("simulating") as status:

        def show(name: str, done: int, total: int) -> None:
            status.update(Text(f"simulating {name} ({done + 1} of {total})"))

        answers = compare(chosen, rounds=rounds, seed=seed, progress=show)
    if json:
        print_json({**to_document(chosen, answers), "rounds": rounds, "seed": seed})
    else:
        print_tables(chosen, answers)
    if plot is not None:
        draw_study(study_preset(chosen), points, plot, form)


def read_measured(path: Path) -> list[Point]:
    """Read what was measured. Raises PlanError, ConfigError."""
    with refusing(str(path), PlanError):
        return measured_points(parse_json(read(path, "measurements"), PlanError))


def draw_study(study: Study, points: list[Point], path: Path, form: str | None) -> None:
    """Write a picture, and say so on standard error. Raises PlanError, ConfigError."""
    from sonoran.planning.rounds.plot import render_study

    write(path, render_study(replace(study, measured=tuple(points)), cast(Form, form)))
    remark(f"wrote {path}")


def milliseconds(option: str, text: str) -> list[float]:
    """Times with commas. Raises PlanError naming the option."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise PlanError(f"{option} must be numbers with commas, got {text!r}") from None


def curve(option: str, times: str, rows_option: str, rows: str) -> LatencyCurve:
    """Latency by rows from two options. Raises PlanError."""
    ms, at = milliseconds(option, times), numbers(rows_option, rows)
    if len(ms) != len(at):
        raise PlanError(
            f"{option} has {len(ms)} times for the {len(at)} numbers of {rows_option}: give one for each"
        )
    return LatencyCurve(tuple(zip(map(float, at), ms, strict=True)))


def search(costs: Costs, behaviour: Behaviour, batches: list[int], json: bool) -> None:
    """Print the best plans of each batch size."""
    found = {size: best_plans(costs, behaviour, batch=size) for size in batches}
    if json:
        print_json([{"batch": size, **plans} for size, plans in found.items()])
        return
    table = Table(box=None, header_style="bold")
    for title in ("batch", "AR", "SD", "SSD", "SD/AR", "SSD/AR", "SSD/SD", "hits"):
        table.add_column(title, justify="right", no_wrap=True)
    for size, plans in found.items():
        ar, sd, ssd = (plans[mode].averages for mode in ("ar", "sd", "ssd"))
        table.add_row(
            str(size),
            *(f"{mode.tokens_per_s:.1f}" for mode in (ar, sd, ssd)),
            *(f"{a.tokens_per_s / b.tokens_per_s:.2f}" for a, b in ((sd, ar), (ssd, ar), (ssd, sd))),
            f"{ssd.hit_rate or 0.0:.2f}",
        )
    out.print(table)
    for size, plans in found.items():
        sd_plan, ssd_plan = plans["sd"].plan, plans["ssd"].plan
        say(
            f"batch {size}: SD with K = {sd_plan.num_speculative_tokens}; "
            f"SSD with K = {ssd_plan.num_speculative_tokens}, fan-out {' '.join(map(str, ssd_plan.fan_out))}, "
            f"backup {ssd_plan.backup}"
        )
    say(verdict(found), style="bold")
    say(
        "Tokens per second of the whole batch, by the formulas of the SSD paper, the draft on cores or a device of its "
        "own in SSD. Passes between and beyond the given rows are interpolated.",
        style="dim",
    )
    passes = {
        (b.curve, b.measured): b.rows
        for plans in found.values()
        for f in plans.values()
        for b in f.extrapolated
    }
    for (name, known), count in passes.items():
        say(
            f"A pass of {count} rows ({name}) lies beyond the {known:g} given: its time is extended.",
            style="yellow",
        )


def verdict(found: dict[int, dict[str, Found]]) -> str:
    """What is fastest at each batch size, in a sentence."""
    parts = []
    for size, plans in found.items():
        mode = max(plans, key=lambda name: plans[name].averages.tokens_per_s)
        gain = plans[mode].averages.tokens_per_s / plans["ar"].averages.tokens_per_s
        parts.append(
            f"{mode.upper()} ({gain:.2f} times AR) at batch {size}" if mode != "ar" else f"AR at batch {size}"
        )
    return f"Fastest: {', '.join(parts)}."


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
