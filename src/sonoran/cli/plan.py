"""``sonoran plan``: the draft for a target, by the scaling laws; ``plan reproduce`` and ``plan fit``."""

from __future__ import annotations

import dataclasses
import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from sonoran.cli.common import JsonOption, command, examples, out, print_json, read, say, suffix, write
from sonoran.errors import PlanError
from sonoran.models.untrusted import parse_json, refusing
from sonoran.planning.drawing import FORMS, Form

if TYPE_CHECKING:
    from sonoran.planning.scaling.candidates import Candidate
    from sonoran.planning.scaling.costs import CostModel
    from sonoran.planning.scaling.laws import Laws

app = typer.Typer(help="Plan the draft of a target by the scaling laws; reproduce and refit them.")

EXAMPLES = examples(
    "sonoran plan --target-params 70e9 --target-tokens 15e12",
    "sonoran plan --target Qwen2.5/72B --plot plan.svg --report plan.html",
    "sonoran plan --target Llama-3.1/70B --device h100 --tp 4 --price 2.5",
    "sonoran plan --target Llama-3.1/70B --measured Llama-3.2/1B=5.03@6",
)
REPRODUCE_EXAMPLES = examples("sonoran plan reproduce", "sonoran plan reproduce --table 5 --json")
CHECK_EXAMPLES = examples("sonoran plan check", "sonoran plan check --json")
FIT_EXAMPLES = examples(
    "sonoran plan fit pairs.csv",
    "sonoran plan fit pairs.json --output mine.json",
    "sonoran plan --target-params 70B --laws mine.json",
)


def register(root: typer.Typer) -> None:
    """Add the command group to the application."""
    root.add_typer(app, name="plan")


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
@command
def plan_command(
    context: typer.Context,
    target_params: Annotated[
        str | None, typer.Option(help="Parameters of the target: 70e9, 70B.", metavar="COUNT")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Or a well-known model (Qwen2.5/72B, a hub id) or file.", metavar="NAME|FILE"),
    ] = None,
    target_tokens: Annotated[
        str | None, typer.Option(help="Training tokens of the target: 15e12, 15T.", metavar="COUNT")
    ] = None,
    draft_tokens: Annotated[
        str | None, typer.Option(help="Training tokens of the draft; default: the target's.", metavar="COUNT")
    ] = None,
    candidates: Annotated[
        str | None,
        typer.Option(help="Drafts to rank: a JSON file, or names with commas.", metavar="FILE|NAMES"),
    ] = None,
    measured: Annotated[
        list[str] | None,
        typer.Option(
            help="A measured pair: alpha, or tokens per round @ K. May be repeated.",
            metavar="DRAFT=ALPHA|DRAFT=TOKENS@K",
        ),
    ] = None,
    target_perplexity: Annotated[
        float | None, typer.Option(help="Measured perplexity, for candidates with one.")
    ] = None,
    laws: Annotated[Path | None, typer.Option(help="Laws written by `plan fit`.")] = None,
    loss: Annotated[
        str | None,
        typer.Option(help="Loss law: besiroglu, calibrated, hoffmann or e,a,b,nu,delta.", metavar="LAW"),
    ] = None,
    verify_slope: Annotated[
        float, typer.Option(help="Share that each drafted token adds to a verification; 1 is true FLOPs.")
    ] = 0.0,
    draft_floor: Annotated[
        float, typer.Option(help="Fixed cost of every draft pass, as a share of a target pass.")
    ] = 0.0,
    draft_factor: Annotated[
        float, typer.Option(help="Slowness of the draft's device against the target's.")
    ] = 1.0,
    device: Annotated[
        str | None, typer.Option(help="The target's device: h100, a100, rtx-4090, core-avx512-vnni ...")
    ] = None,
    tp: Annotated[int, typer.Option(help="How many of them share the target.")] = 1,
    draft_device: Annotated[
        str | None, typer.Option(help="SSD: the draft's own device; default: one more of the same.")
    ] = None,
    target_bits: Annotated[float, typer.Option(help="Bits per weight of the target on its device.")] = 16.0,
    draft_bits: Annotated[float, typer.Option(help="Bits per weight of the draft.")] = 16.0,
    price: Annotated[float | None, typer.Option(help="Price of one device and hour.")] = None,
    latencies: Annotated[Path | None, typer.Option(help="Measured milliseconds by rows (JSON).")] = None,
    hit_rate: Annotated[float, typer.Option(help="SSD: hit rate of the speculation cache.")] = 0.8,
    backup: Annotated[str, typer.Option(help="SSD: what a miss does, draft or none.")] = "draft",
    draws: Annotated[int, typer.Option(help="Bootstrap draws for the interval of N*; 0 for none.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write the plot: .svg, .png or .html.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write one self-contained page: .html.")] = None,
    json: JsonOption = False,
) -> None:
    """Which draft for this target, how long a draft, what throughput, and how sure is that?"""
    if context.invoked_subcommand is not None:
        return
    from sonoran.planning.scaling.planning import plan
    from sonoran.planning.scaling.quantities import parse_count

    # Wrong file names are cheaper to hear of before the work than after it.
    form = suffix(plot, FORMS, "--plot")
    suffix(report, ("html",), "--report")
    chosen, cost = read_laws(laws, loss), read_cost(latencies, verify_slope, draft_floor, draft_factor)
    on_devices = read_devices(device, tp, draft_device, target_bits, draft_bits)
    if on_devices is not None:
        if latencies is not None or cost != read_cost(None, 0.0, 0.0, 1.0):
            raise PlanError(
                "--device replaces --latencies, --verify-slope, --draft-floor and --draft-factor: give one or the other"
            )
        cost = on_devices
    answer = plan(
        None if target_params is None else parse_count("--target-params", target_params),
        target=target,
        target_tokens=None if target_tokens is None else parse_count("--target-tokens", target_tokens),
        draft_tokens=None if draft_tokens is None else parse_count("--draft-tokens", draft_tokens),
        candidates=None if candidates is None else read_candidates(candidates),
        laws=chosen,
        cost=cost,
        hit_rate=hit_rate,
        backup=backup,
        target_perplexity=target_perplexity,
        measured=read_measured(measured or []),
        price=price,
        draws=draws,
        seed=seed,
    )
    if plot is not None:
        from sonoran.planning.scaling.plot import render_plot

        drawing = render_plot(answer, laws=chosen, cost=cost, form=cast(Form, form))
        write(plot, drawing)
    if report is not None:
        from sonoran.planning.scaling.report import render_report

        write(report, render_report(answer, laws=chosen, cost=cost).encode("utf-8"))
    if json:
        print_json(answer)
        return
    from sonoran.cli.plan_text import plan_text

    out.print(plan_text(answer))
    for path in (plot, report):
        if path is not None:
            say(f"wrote {path}")


@app.command(epilog=REPRODUCE_EXAMPLES)
@command
def reproduce(
    table: Annotated[int | None, typer.Option(help="One table: 3, 4, 5, 6, 8 or 9. Default: all.")] = None,
    json: JsonOption = False,
) -> None:
    """Compute the published tables again and show published, computed and difference."""
    from sonoran.cli.plan_text import table_text
    from sonoran.planning.scaling.reproduction import CORRECTIONS, TABLES
    from sonoran.planning.scaling.reproduction import reproduce as compute

    tables = [compute(number) for number in (TABLES if table is None else (table,))]
    if json and table is not None:
        print_json(tables[0].to_dict())
    elif json:
        print_json({"tables": [item.to_dict() for item in tables], "corrections": list(CORRECTIONS.values())})
    else:
        for item in tables:
            out.print(table_text(item))


@app.command(epilog=CHECK_EXAMPLES)
@command
def check(json: JsonOption = False) -> None:
    """Predict the systems whose speeds are published, and print both."""
    from sonoran.cli.plan_text import check_text
    from sonoran.planning.scaling.check import check_pairs

    checks = check_pairs()
    if json:
        print_json([{**dataclasses.asdict(item), "within": item.within} for item in checks])
    else:
        out.print(check_text(checks))


@app.command(epilog=FIT_EXAMPLES)
@command
def fit(
    measurements: Annotated[Path, typer.Argument(help="Measured pairs, CSV or JSON (see docs/planning.md).")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Laws file to write; default: NAME.laws.json here.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="Loss law to write along: besiroglu, hoffmann or e,a,b,nu,delta.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the laws file.")] = False,
    json: JsonOption = False,
) -> None:
    """Fit the acceptance plane to your own measurements and write a laws file for `plan --laws`."""
    from sonoran.cli.plan_text import fit_text
    from sonoran.planning.scaling.acceptance import fit_measurements
    from sonoran.planning.scaling.laws import fit_warnings, laws_from_fit, laws_to_dict
    from sonoran.planning.scaling.loss import BESIROGLU, parse_loss_law
    from sonoran.planning.scaling.measurements import parse_measurements

    form = suffix(measurements, ("csv", "json"), "measurements")
    path = output or Path(f"{measurements.stem}.laws.json")
    if path.exists() and not force:
        raise PlanError(f"{path} exists; choose another --output, or overwrite it with --force")
    law = BESIROGLU if loss is None else parse_loss_law(loss)
    with refusing(measurements, PlanError):
        points, warnings = parse_measurements(read(measurements, "measurements"), form=form or "csv")
        plane = fit_measurements(points)
        document = laws_to_dict(
            plane, laws_from_fit(plane, tuple(points), loss=law, source=measurements.name)
        )
    warnings += fit_warnings(plane, points)
    if not json:
        out.print(fit_text(document, warnings))
    if plane.plane.a >= 0:
        raise PlanError(
            f"{measurements}: no laws file written: A = {float(plane.plane.a):.3g} is not negative, so in these data "
            "worse drafts are accepted more often; the planner cannot size a draft with that"
        )
    write(path, (jsonlib.dumps(document, indent=1) + "\n").encode("utf-8"))
    if json:
        print_json({**document, "warnings": warnings, "output": str(path)})
    else:
        say(f"wrote {path}; use it with: sonoran plan --laws {path} ...")


def read_laws(path: Path | None, loss: str | None) -> Laws:
    """Laws from a file or the published ones, with another loss law if asked."""
    from sonoran.planning.scaling.laws import laws_from_json
    from sonoran.planning.scaling.loss import parse_loss_law
    from sonoran.planning.scaling.models import published_laws

    if path is None:
        found = published_laws()
    else:
        with refusing(path, PlanError):
            found = laws_from_json(read(path, "laws"))
    return found if loss is None else dataclasses.replace(found, loss=parse_loss_law(loss))


def read_cost(latencies: Path | None, slope: float, floor: float, factor: float) -> CostModel:
    """Cost model from measured latencies, or from the three shares."""
    from sonoran.planning.scaling.costs import ParameterCost, measured_cost_from_dict

    if latencies is None:
        return ParameterCost(slope, floor, factor)
    if (slope, floor, factor) != (0.0, 0.0, 1.0):
        raise PlanError(
            "--latencies replaces --verify-slope, --draft-floor and --draft-factor: give one or the other"
        )
    with refusing(latencies, PlanError):
        value = parse_json(read(latencies, "latencies"), PlanError)
        if not isinstance(value, dict):
            raise PlanError(f"{latencies}: latencies must be a JSON object with 'target' and 'drafts'")
        return measured_cost_from_dict(value)


def read_devices(
    device: str | None, count: int, draft_device: str | None, target_bits: float, draft_bits: float
) -> CostModel | None:
    """Cost model of built-in devices; None where none is named."""
    from sonoran.planning.scaling.devices import DeviceCost, find_device

    if device is None:
        if (count, draft_device, target_bits, draft_bits) != (1, None, 16.0, 16.0):
            raise PlanError(
                "--tp, --draft-device, --target-bits and --draft-bits belong to --device: name the target's"
            )
        return None
    own = None if draft_device is None else find_device(draft_device)
    return DeviceCost(find_device(device), count, own, target_bits, draft_bits)


def read_candidates(given: str) -> list[Candidate]:
    """Candidates from a JSON file or from names with commas."""
    from sonoran.planning.scaling.candidates import candidate_of, parse_candidates
    from sonoran.planning.scaling.models import find_model

    if given.lower().endswith(".json"):
        with refusing(given, PlanError):
            return parse_candidates(read(Path(given), "candidates"))
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise PlanError("--candidates is empty; give a JSON file or names such as Qwen2.5/0.5B,Qwen2.5/1.5B")
    return [candidate_of(find_model(name)) for name in dict.fromkeys(names)]


def read_measured(given: list[str]) -> dict[str, float | str]:
    """Measured pairs from ``DRAFT=ALPHA`` and ``DRAFT=TOKENS@K``. Raises PlanError."""
    found: dict[str, float | str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise PlanError(
                f"--measured {text!r}: write DRAFT=ALPHA or DRAFT=TOKENS@K, for example Llama-3.2/1B=5.03@6"
            )
        found[name] = value
    return found
