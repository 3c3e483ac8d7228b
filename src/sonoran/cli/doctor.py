"""``sonoran doctor``: what the machine has, what is cached, whether everything works."""

from __future__ import annotations

import time
from typing import Annotated, Any

import numpy as np
import typer

from sonoran import _native
from sonoran.backends.packed import packed_report
from sonoran.backends.placement import find_processors
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
BYTES_PER_WEIGHT = 4.5 / 8  # of Q4_K, most of what the default models are made of
FEW_ROWS = 3.0
TRIAL = (1024, 1536)  # outputs and inputs of the matrix that is multiplied: it stays in the cache
TRIAL_ROWS, TRIAL_REPEATS = 4, 200


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
        "placement": describe_placement(),
        "bandwidth": measure_bandwidth() if measure else None,
        "multiply_adds_per_s": measure_products() if measure else None,
        "packages": package_versions(),
        "cache": {"path": str(cache), "models": cached_models(cache), "packed": packed_report(cache)},
    }
    report["rows_at_the_cost_of_one"] = None
    if measure:
        read = report["bandwidth"]["one_core_gb_per_s"] * 1e9
        report["rows_at_the_cost_of_one"] = report["multiply_adds_per_s"] * BYTES_PER_WEIGHT / read
    entry = smallest_cached(cache)
    report["check"] = None
    if entry is not None:
        report["check"] = {"model": entry.name, **try_model(model_path(entry, cache))}
    report["problems"] = problems(report)
    report["advice"] = advice(report)
    report["works"] = None if report["check"] is None else not report["problems"]
    return report


def describe_placement() -> dict[str, Any]:
    """Return physical cores (performance cores first), the container's CPU quota and the default of threads."""
    found = find_processors()
    return {"physical_cores": list(found.physical), "quota": found.quota, "threads": len(found.cores)}


def measure_products() -> float:
    """Return multiply-adds per second of one core for a few rows and 4-bit weights, best of the repeats."""
    outputs, inputs = TRIAL
    weights = np.zeros(outputs * inputs // 256 * 144, np.uint8)
    matrix = _native.PackedMatrix("Q4_K", "Q4_K", outputs, inputs, weights)
    x, y = np.ones((TRIAL_ROWS, inputs), np.float32), np.empty((TRIAL_ROWS, outputs), np.float32)
    best = float("inf")
    for _ in range(TRIAL_REPEATS):
        start = time.perf_counter()
        matrix.multiply(x, y)
        best = min(best, time.perf_counter() - start)
    return TRIAL_ROWS * outputs * inputs / best


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
    rows = report["rows_at_the_cost_of_one"]
    if rows is not None and rows < FEW_ROWS:
        tips.append(
            f"with {report['processor']['kernels']} about {rows:.1f} rows cost one here: short speculations pay best"
        )
    if report["placement"]["quota"] is not None and report["placement"]["quota"] < 2:
        tips.append("the CPU quota leaves one thread: SSD needs a second core")
    return tips


def show(report: dict[str, Any]) -> None:
    """Print the report as lines of a name and what is true of it."""
    processor, memory, pages = report["processor"], report["memory"], report["huge_pages"]
    usable = processor["available_cores"]
    placement = report["placement"]
    limit = "" if placement["quota"] is None else f", CPU quota {placement['quota']:g}"
    lines = {
        "system": report["system"],
        "processor": f"{processor['model']} ({processor['architecture']})",
        "cores": f"{processor['cores']}, usable {', '.join(map(str, usable)) or 'unknown'}",
        "threads": f"{placement['threads']} by default: {len(placement['physical_cores'])} physical{limit}",
        "instructions": f"{', '.join(processor['instruction_sets'])}; kernels: {processor['kernels']}",
        "memory": f"{gigabytes(memory['total_bytes'])}, {gigabytes(memory['available_bytes'])} available",
        "huge pages": pages["transparent"] or "unknown",
    }
    if report["bandwidth"] is not None:
        rates = report["bandwidth"]
        one, every = rates["one_core_gb_per_s"], rates["all_cores_gb_per_s"]
        lines["read loop"] = f"{one:.1f} GB/s on one core, {every:.1f} GB/s on all"
        rows = report["rows_at_the_cost_of_one"]
        rate = report["multiply_adds_per_s"] / 1e9
        lines["rows"] = f"about {rows:.1f} for the price of one ({rate:.0f} G multiply-adds/s on one core)"
    versions = report["packages"].items()
    lines["packages"] = ", ".join(f"{name} {version or 'MISSING'}" for name, version in versions)
    lines["cache"] = report["cache"]["path"]
    for model in report["cache"]["models"]:
        state = "cached" if model["cached"] else "not cached"
        if model["partial_bytes"]:
            state += f", {gigabytes(model['partial_bytes'])} of an unfinished pull"
        lines["  " + model["name"]] = f"{gigabytes(model['size'])}, {state}"
    packed = report["cache"]["packed"]
    most = f"at most {gigabytes(packed['largest_bytes'])}" if packed["largest_bytes"] else "switched off"
    lines["  packed weights"] = f"{gigabytes(packed['bytes'])} in {packed['files']} files, {most}"
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
