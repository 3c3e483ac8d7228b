"""Plans, fits and reproduced tables as text for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sonoran.planning.scaling.check import Check
from sonoran.planning.scaling.hidden import HiddenDrafting
from sonoran.planning.scaling.planning import Optimum, Plan
from sonoran.planning.scaling.quantities import format_count
from sonoran.planning.scaling.reproduction import Table as Reproduced


def plan_text(answer: Plan) -> Group:
    """The whole plan: sentence, numbers, candidates, SSD, rules, other assumptions, warnings."""
    parts: list[RenderableType] = [Text(answer.sentence), Text("")]
    if answer.optimum is not None:
        parts += [_numbers(answer.optimum), Text("")]
    if answer.candidates:
        parts += [_candidates(answer), Text("")]
    if answer.deployments:
        parts += [_deployments(answer), Text("")]
    if answer.hidden is not None:
        parts += [_hidden(answer.hidden), Text("")]
    if answer.optimum is not None:
        best = answer.optimum.parameters
        rules = [
            (
                rule.name + ("" if rule.in_range else ", not fitted here"),
                format_count(rule.parameters),
                f"{rule.relative_error:+.0%}",
                f"{rule.throughput_kept:.1%}",
            )
            for rule in answer.rules
        ]
        parts += [_table("Rules of thumb", ("", "draft", "error of N*", "throughput kept"), rules), Text("")]
        others = [(v.name, format_count(v.parameters), f"{v.parameters / best:.2f}") for v in answer.variants]
        parts += [_table("N* under other assumptions", ("", "draft", "relative"), others), Text("")]
    parts.append(Text("Extrapolated or assumed", style="bold"))
    parts += [Padding(Text("- " + note.text), (0, 0, 0, 2)) for note in answer.notes]
    return Group(*parts)


def check_text(checks: list[Check]) -> Group:
    """Predicted beside published speed-ups."""
    rows = [
        (
            f"{item.pair}, {item.run}",
            f"{item.mode.upper()} K = {item.num_speculative_tokens}",
            f"{item.predicted:.2f}",
            f"{item.low:.2f}-{item.high:.2f}",
            f"{item.published:.2f}",
            f"{item.predicted / item.published - 1:+.0%}" + (" =" if item.fitted else ""),
        )
        for item in checks
    ]
    own = [item for item in checks if not item.fitted]
    lines = [
        f"{sum(item.within for item in own)} of {len(own)} predictions have the published value in their range (each "
        "model's passes off by 10 %, against each other).",
        "Speed-ups over AR at the published draft lengths, from the pair's tokens per round, its hit rate and the "
        "built-in devices. = : the tokens per round were read from this speed, so agreement proves little.",
    ]
    head = ("", "mode", "predicted", "range", "published", "difference")
    return Group(_table(None, head, rows), *(Text(line) for line in lines))


def table_text(table: Reproduced) -> Group:
    """One reproduced table with its maximum difference and the corrections it needed."""
    known: tuple[str, ...] = ("target", "form", "draft_family", "draft", "quantity")
    about = [key for key in known if key in table.rows[0]]
    title = f"Table {table.table}: {table.title}"
    if len(about) > 1 and len({row["quantity"] for row in table.rows}) == 1:
        about.remove("quantity")
        title += f"; {table.rows[0]['quantity']}"
    grid = Table(box=None, pad_edge=False)
    for name in about:
        grid.add_column(name.replace("_", " "))
    for name in ("published", "computed", "difference", "relative"):
        grid.add_column(name, justify="right", no_wrap=True, min_width=9)
    for row in table.rows:
        label = [str(row[name]) for name in about]
        if not row.get("significant", True):
            label[-1] += " (zero within its margin)"
        figures = (f"{row['published']:.10g}", f"{row['computed']:.10g}", f"{row['difference']:+.1e}")
        grid.add_row(*label, *figures, f"{row['relative_difference']:+.1e}")
        for name in (key.removeprefix("published_") for key in row if key.startswith("published_")):
            if f"computed_{name}" in row and name in ("margin", "standard_error", "throughput"):
                first, second = row[f"published_{name}"], row[f"computed_{name}"]
                side = (
                    f"{first:.6g}",
                    f"{second:.6g}",
                    f"{second - first:+.1e}",
                    f"{(second - first) / first:+.1e}",
                )
                empty = [""] * (len(about) - 1)
                grid.add_row(*empty, "  " + name.replace("_", " "), *side, style="dim")
    document = table.to_dict()
    parts: list[RenderableType] = [Text(title, style="bold"), grid]
    parts.append(Text(f"largest relative difference: {document['max_relative_difference']:.2g}"))
    parts += [Padding(Text("- " + text), (0, 0, 0, 2)) for text in table.corrections]
    return Group(*parts, Text(""))


def fit_text(document: dict[str, Any], warnings: Iterable[str]) -> Group:
    """A fitted plane and how good it is."""
    quality = document["quality"]
    rows = [
        (
            f"{name} ({what})",
            f"{document['plane'][name]:.6g}",
            f"{quality['standard_errors'][name]:.3g}",
            f"{quality['margins_95'][name]:.3g}",
        )
        for name, what in (("A", "draft perplexity"), ("B", "target perplexity"), ("C", "constant"))
    ]
    left_out = quality["left_out_target_error"]
    lines = [
        f"{quality['points']} pairs, {quality['targets']} targets, {quality['drafts']} drafts",
        f"R2 {quality['r2']:.4f}, residual standard deviation {quality['residual_sd']:.4f} in alpha",
        "error on targets left out: "
        + ("not enough targets" if left_out is None else f"{left_out:.4f} in alpha"),
    ]
    notes = [Text(f"warning: {text}", style="yellow") for text in warnings]
    head = ("", "estimate", "standard error", "95 % margin")
    return Group(_table("alpha = A x + B y + C", head, rows), *(Text(line) for line in lines), *notes)


def _numbers(best: Optimum) -> Group:
    interval = "not available: fewer than three measured targets, or no draws"
    if best.interval is not None:
        interval = f"{format_count(best.interval.low)} to {format_count(best.interval.high)}"
    rows = [
        (
            "best draft N*",
            f"{format_count(best.parameters)} ({best.parameters:.0f} parameters), 1/{best.ratio:.0f} of the target",
        ),
        ("95 %, targets drawn again", interval),
        ("within 1 % of the best", " to ".join(format_count(v) for v in best.within_1_percent)),
        ("within 5 %", " to ".join(format_count(v) for v in best.within_5_percent)),
        (
            "alpha",
            f"{best.alpha:.4f} ({best.alpha_range[0]:.2f} to {best.alpha_range[1]:.2f} for a single pair)",
        ),
        ("draft length", f"K = {best.num_speculative_tokens} (continuous optimum {best.gamma:.2f})"),
        (
            "speed-up over plain decoding",
            "{:.3f} ({:.2f} to {:.2f} for a single pair)".format(best.integer_speedup, *best.speedup_range),
        ),
    ]
    return _table(None, ("", ""), rows, left=True)


def _candidates(answer: Plan) -> Group:
    rows, notes = [], []
    for row in answer.candidates:
        spread = "" if row.speedup_range is None else "{:.2f}-{:.2f}".format(*row.speedup_range)
        alpha = "" if row.alpha is None else f"{row.alpha:.3f}"
        cells = (
            row.name,
            format_count(row.parameters),
            alpha,
            row.alpha_source,
            str(row.gamma),
            f"{row.speedup:.2f}",
        )
        rows.append((*cells, spread, f"{row.ssd_speedup:.2f}", "yes" if row.pays else "no"))
        if row.note:
            notes.append(Padding(Text(f"{row.name}: {row.note}"), (0, 0, 0, 2)))
    head = ("draft", "size", "alpha", "from", "K", "speed-up", "range", "SSD", "pays")
    return Group(_table("Candidates", head, rows), *notes)


def _deployments(answer: Plan) -> Group:
    rows = [
        (
            way.mode.upper(),
            str(way.num_speculative_tokens or ""),
            str(way.devices),
            f"{way.tokens_per_s:.1f}",
            f"{way.tokens_per_s_per_device:.1f}",
            "" if way.cost is None else f"{way.cost:.2f}",
            "" if way.energy_kwh is None else f"{way.energy_kwh:.1f}",
        )
        for way in answer.deployments
    ]
    head = ("", "K", "devices", "tokens/s", "per device", "cost per 1M", "kWh per 1M")
    _, sd, ssd = answer.deployments
    gain = ssd.tokens_per_s / sd.tokens_per_s
    per_device = ssd.tokens_per_s_per_device / sd.tokens_per_s_per_device
    verdict = (
        f"SSD is {gain:.2f} times SD with {ssd.devices} devices instead of {sd.devices}, "
        f"{per_device:.2f} times per device: "
    )
    verdict += (
        "the draft's own device earns its keep."
        if per_device >= 1.0
        else "where many requests wait, another replica is worth more than a device for the draft."
    )
    name = answer.best_candidate or "the best size"
    return Group(_table(f"On these devices, one request at a time, draft {name}", head, rows), Text(verdict))


def _hidden(hidden: HiddenDrafting) -> Group:
    rows = [
        (
            name,
            format_count(choice.parameters),
            f"{choice.gamma:.0f}",
            f"{choice.alpha:.3f}",
            f"{choice.speedup:.2f}",
        )
        for name, choice in (("SD", hidden.sd), ("SSD", hidden.ssd))
    ]
    title = f"Hidden drafting (SSD, hit rate {hidden.settings.hit_rate:.2g}, backup {hidden.settings.backup})"
    limit = format_count(hidden.hidden_limit) if hidden.hidden_limit else "no size"
    keeps = format_count(hidden.break_even) if hidden.break_even else "none"
    return Group(
        _table(title, ("", "best draft", "K", "alpha", "speed-up"), rows),
        Text(
            f"The best draft is {hidden.size_ratio:.1f} times as large. Its work stays hidden up to {limit}; "
            f"the largest draft with which SSD still matches the best SD: {keeps}."
        ),
    )


def _table(
    title: str | None, head: Iterable[str], rows: Iterable[Iterable[str]], *, left: bool = False
) -> Group:
    names = list(head)
    table = Table(box=None, pad_edge=False, show_header=any(names))
    for index, name in enumerate(names):
        plain = index == 0 or left
        table.add_column(name, justify="left" if plain else "right", header_style="dim", no_wrap=not plain)
    for row in rows:
        table.add_row(*row)
    return Group(*([] if title is None else [Text(title, style="bold")]), table)
