"""``sonoran doctor``: what the machine has, what is cached, whether everything works."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sonoran import _native
from sonoran.bench.machine import (
    describe_huge_pages,
    describe_memory,
    describe_processor,
    describe_system,
    measure_bandwidth,
    package_versions,
)
from sonoran.bench.selfcheck import cached_models, smallest_cached, try_model
from sonoran.cli.common import JsonOption, command, examples, out, print_json
from sonoran.models.cache import cache_dir, model_path

EXAMPLES = examples("sonoran doctor", "sonoran doctor --json", "sonoran doctor --no-measure")
PULL = "sonoran models pull"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("doctor", epilog=EXAMPLES)(doctor)


@command
def doctor(
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure the memory bandwidth (a second).")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Describe the machine, the installation and the cache; exit code 1 when something does not work."""
    report = examine(measure)
    if json:
        print_json(report)
    else:
        show(report)
    if report["problems"]:
        raise typer.Exit(1)


def examine(measure: bool = True) -> dict[str, Any]:
    """Return the whole report; ``problems`` has what does not work, ``advice`` what would help."""
    cache = cache_dir()
    report: dict[str, Any] = {
        "system": describe_system(),
        "processor": describe_processor(),
        "memory": describe_memory(),
        "huge_pages": describe_huge_pages(),
        "bandwidth": measure_bandwidth() if measure else None,
        "packages": package_versions(),
        "cache": {"path": str(cache), "models": cached_models(cache)},
    }
    entry = smallest_cached(cache)
    report["check"] = None
    if entry is not None:
        report["check"] = {"model": entry.name, **try_model(model_path(entry, cache))}
    report["problems"] = problems(report)
    report["advice"] = advice(report)
    report["works"] = None if report["check"] is None else not report["problems"]
    return report


def problems(report: dict[str, Any]) -> list[str]:
    """Return what is broken, one sentence each."""
    missing = [name for name, version in report["packages"].items() if version is None]
    found = [f"the package {name} is not installed" for name in missing]
    check = report["check"]
    if check is not None and not check["works"]:
        found.append(f"{check['model']} does not work: {check.get('error', 'it generated too few tokens')}")
    return found


def advice(report: dict[str, Any]) -> list[str]:
    """Return what would make things work, or work faster, one sentence each."""
    tips = []
    if report["check"] is None:
        tips.append(f"no model is cached, so nothing was tried; get the default pair with: {PULL}")
    if report["huge_pages"]["used_for_weights"] is False:
        tips.append(
            "transparent huge pages are off, which slows the reading of weights; as root: "
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        )
    best = _native.instruction_sets()[0].name
    if report["processor"]["kernels"] != best:
        tips.append(f"this processor lacks {best}: passes of several rows cost more than documented")
    return tips


def show(report: dict[str, Any]) -> None:
    """Print the report as lines of a name and what is true of it."""
    processor, memory, pages = report["processor"], report["memory"], report["huge_pages"]
    usable = processor["available_cores"]
    lines = {
        "system": report["system"],
        "processor": f"{processor['model']} ({processor['architecture']})",
        "cores": f"{processor['cores']}, usable {', '.join(map(str, usable)) or 'unknown'}",
        "instructions": f"{', '.join(processor['instruction_sets'])}; kernels: {processor['kernels']}",
        "memory": f"{gigabytes(memory['total_bytes'])}, {gigabytes(memory['available_bytes'])} available",
        "huge pages": pages["transparent"] or "unknown",
    }
    if report["bandwidth"] is not None:
        rates = report["bandwidth"]
        one, every = rates["one_core_gb_per_s"], rates["all_cores_gb_per_s"]
        lines["read loop"] = f"{one:.1f} GB/s on one core, {every:.1f} GB/s on all"
    versions = report["packages"].items()
    lines["packages"] = ", ".join(f"{name} {version or 'MISSING'}" for name, version in versions)
    lines["cache"] = report["cache"]["path"]
    for model in report["cache"]["models"]:
        state = "cached" if model["cached"] else "not cached"
        if model["partial_bytes"]:
            state += f", {gigabytes(model['partial_bytes'])} of an unfinished pull"
        lines["  " + model["name"]] = f"{gigabytes(model['size'])}, {state}"
    check = report["check"]
    if check is not None:
        lines["check"] = f"{check['model']} does not work"
        if check["works"]:
            times = f"loaded in {check['load_s']:.2f} s and answered in {check['generate_s']:.2f} s"
            lines["check"] = f"{check['model']} {times}"
    width = max(map(len, lines))
    for name, text in lines.items():
        out.print(f"{name:<{width}}  {text}", highlight=False, markup=False, soft_wrap=True)
    for problem in report["problems"]:
        out.print(f"problem: {problem}", style="red", highlight=False, markup=False, soft_wrap=True)
    for tip in report["advice"]:
        out.print(f"advice: {tip}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    if report["works"]:
        out.print("everything works", style="green")


def gigabytes(count: int | None) -> str:
    """Return bytes as gigabytes, or that they are unknown."""
    return "unknown" if count is None else f"{count / 1e9:.2f} GB"
