"""What `sonoran bench decode --report` writes: results.json, a page (HTML), the same as Markdown, and the pictures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from sonoran.bench.verdict import speed_table
from sonoran.planning.drawing import SHADES, Form, draw, look, reference
from sonoran.planning.page import figure, items, page, table
from sonoran.planning.rounds.curves import Point
from sonoran.planning.rounds.plot import frontier_panel, name_batches

PARTS = ("draft", "verification", "sampling", "rest")
HATCHES = ("//", "", "..", "xx")

MADE = ("<!-- made by sonoran bench decode --report -->", "<!-- end of what was made -->")
"""Around the Markdown, so that a reader of a page it was pasted into knows what a command wrote."""


def report_files(result: Mapping[str, Any], command: str) -> dict[str, bytes]:
    """Return all files of a report by name, from the document of `bench decode` and the command that gave it.

    Raises PlanError without matplotlib.
    """
    svg = render_results(result, "svg")
    return {
        "results.json": (json.dumps({"command": command, **result}, indent=2, default=str) + "\n").encode(),
        "report.svg": svg,
        "report.png": render_results(result, "png"),
        "report.html": render_page(result, command, svg).encode(),
        "report.md": render_markdown(result, command).encode(),
    }


def acceptance_by_position(mode: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Return (position, share of the tokens proposed there that were accepted), from position 1."""
    counts = zip(mode["accepted_per_position"], mode["proposed_per_position"], strict=True)
    return [(i, accepted / proposed) for i, (accepted, proposed) in enumerate(counts, 1) if proposed]


def ms_per_token(mode: Mapping[str, Any]) -> dict[str, float]:
    """Return milliseconds per new token by what they went into, prompts included; empty where nothing is known."""
    times, count = mode["time_s"], mode["num_tokens"]
    return {part: 1e3 * times[part] / count for part in PARTS} if times and count else {}


def throughput_points(result: Mapping[str, Any]) -> list[Point]:
    """Return what was measured of several prompts at once."""
    return [Point(e["mode"], e["batch"], e["tokens_per_s"]) for e in result.get("throughput", [])]


def render_results(result: Mapping[str, Any], form: Form = "svg") -> bytes:
    """Draw the measurements. Raises PlanError (``draw``)."""
    points = throughput_points(result)

    def paint(canvas: Any) -> None:
        axes = canvas.subplots(2, 2)
        _speeds(axes[0][0], result["modes"])
        if points:
            frontier_panel(axes[0][1], points)
            axes[0][1].set_xlabel("tokens/s of one sequence, prompts included")
        else:
            axes[0][1].set_axis_off()
        _positions(axes[1][0], result["modes"])
        _times(axes[1][1], result["modes"])
        canvas.suptitle(f"{result['model']}, {result['dataset']}", ha="left", x=0.01, fontsize=11)
        if points:
            name_batches(axes[0][1], points)

    return draw(paint, (12, 9.2), form, title="Decoding, measured")


def _speeds(axes: Any, modes: Mapping[str, Mapping[str, Any]]) -> None:
    names = list(modes)
    speeds = [modes[name]["tokens_per_s"] for name in names]
    below = [s - modes[n]["tokens_per_s_min"] for n, s in zip(names, speeds, strict=True)]
    above = [modes[n]["tokens_per_s_max"] - s for n, s in zip(names, speeds, strict=True)]
    axes.bar(
        names, speeds, color=[look(n).colour for n in names], yerr=[below, above], capsize=4, ecolor="#1f2430",
        width=0.6,
    )  # fmt: skip
    base = next((n for n in names if n.startswith("ar")), None)
    if base is not None:
        reference(axes, modes[base]["tokens_per_s"], "")
    axes.set_ylabel("tokens/s, one prompt at a time")
    axes.set_title("Speed by mode: median prompt, slowest and fastest")
    axes.tick_params(axis="x", labelrotation=20 if len(names) > 5 else 0)


def _positions(axes: Any, modes: Mapping[str, Mapping[str, Any]]) -> None:
    drawn = False
    for name, mode in modes.items():
        if points := acceptance_by_position(mode):
            axes.plot(*zip(*points, strict=True), label=name, **look(name).curve())
            drawn = True
    axes.set_ylim(0, 1.02)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("position in the speculation")
    axes.set_ylabel("accepted, share of the proposed")
    axes.set_title("Acceptance by position")
    if drawn:
        axes.legend(loc="best")


def _times(axes: Any, modes: Mapping[str, Mapping[str, Any]]) -> None:
    known = {name: times for name, mode in modes.items() if (times := ms_per_token(mode))}
    bottom = [0.0] * len(known)
    for part, colour, hatch in zip(PARTS, SHADES, HATCHES, strict=False):
        heights = [times[part] for times in known.values()]
        axes.bar(
            list(known),
            heights,
            bottom=bottom,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            width=0.6,
            label=part,
        )
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_ylabel("ms per new token, prompts included")
    axes.set_title("Where the time goes, as the engine waits for it")
    if known:
        axes.legend(loc="best")


def _batch_table(result: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    head = ("mode", "batch", "tokens/s", "spread", "groups")
    return head, [
        (e["mode"], str(e["batch"]), f"{e['tokens_per_s']:.1f}", f"{e['spread']:.0%}", str(e["count"]))
        for e in result.get("throughput", [])
    ]


def _facts(result: Mapping[str, Any]) -> list[str]:
    machine, count = result["processor"], len(result["processor"]["available_cores"])
    same = "identical in all modes" if result["identical_texts"] else f"DIFFERENT: {result['differences']}"
    return [
        f"Machine: {machine['model']}, {count} cores, kernels {machine['kernels']}.",
        f"Target {result['model']}, draft {result['draft']}; {result['num_prompts']} prompts of {result['dataset']}, at "
        f"most {result['max_tokens']} tokens each, temperature {result['temperature']:g}.",
        "Modes take turns on every prompt. Speeds are medians over prompts, the prompt excluded; the spread is the "
        "interquartile range over the median.",
        f"Texts: {same}.",
    ]


_TOGETHER = (
    "Several prompts at once: new tokens of all over the seconds from call to return, prompts included; the median over "
    "groups of prompts."
)


def render_page(result: Mapping[str, Any], command: str, svg: bytes) -> str:
    """Return the page; it loads nothing."""
    parts = [
        f'<p class="lead">{escape(result["verdict"])}</p>', f"<pre>{escape(command)}</pre>", items(_facts(result)),
        figure(svg), "<h2>One prompt at a time</h2>", table(*speed_table(result["modes"], nothing="")),
    ]  # fmt: skip
    if result.get("throughput"):
        parts += ["<h2>By batch size</h2>", f"<p>{escape(_TOGETHER)}</p>", table(*_batch_table(result))]
    return page("Decoding, measured", parts, "Made by sonoran bench decode --report.")


def render_markdown(result: Mapping[str, Any], command: str) -> str:
    """Return the tables for a page of results, between marks that say who wrote them."""
    lines = [MADE[0], "", f"`{command}`", "", *(f"- {fact}" for fact in _facts(result)), ""]
    lines += [*_rows(*speed_table(result["modes"], nothing="")), "", result["verdict"], ""]
    if result.get("throughput"):
        lines += [_TOGETHER, "", *_rows(*_batch_table(result)), ""]
    return "\n".join([*lines, "![Decoding, measured](report.png)", "", MADE[1], ""])


def _rows(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    names = list(head)
    body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(names) + " |", "|" + "---|" * len(names), *body]
