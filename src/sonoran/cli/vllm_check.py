"""``sonoran vllm-check``: does SSD work inside the vLLM that is installed here?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sonoran.cli.common import JsonOption, command, examples, out, print_json, say
from sonoran.vllm.check import examine

EXAMPLES = examples("sonoran vllm-check", "sonoran vllm-check --no-trial --json")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("vllm-check", epilog=EXAMPLES)(vllm_check)


@command
def vllm_check(
    trial: Annotated[
        bool, typer.Option("--trial/--no-trial", help="Generate with a tiny random model (about a minute).")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Say which vLLM is here and whether SSD works in it; exit code 1 when it does not."""
    report = examine(trial)
    if json:
        print_json(report)
    else:
        show(report)
    if report["problems"]:
        raise typer.Exit(1)


def show(report: dict[str, Any]) -> None:
    """Print the report."""
    found = f"{report['package']} {report['version']}" if report["version"] else "not installed"
    out.print("vLLM:", found, f"(tested: {report['tested'][0]} to {report['tested'][1]})")
    for name, version in report["packages"].items():
        out.print(f"{name}:", version or "not installed")
    trial = report["trial"]
    if trial is not None and not trial["problems"]:
        same, total = trial["same_texts"]
        out.print(
            f"trial: {same} of {total} texts are vLLM's own, hit rate {trial['hit_rate']:.2f}, "
            f"{trial['tokens_per_verification']:.2f} tokens per verification"
        )
    for line in report["problems"]:
        say(line, style="red")
    for line in report["notes"]:
        say(f"note: {line}")
    if not report["problems"]:
        out.print("SSD works here" if trial is not None else "nothing is missing; it was not tried")
