"""A plan as one self-contained HTML page: the plot inline, nothing loaded from elsewhere."""

from __future__ import annotations

from html import escape

from sonoran.planning.page import figure, items, page, table
from sonoran.planning.scaling.costs import PUBLISHED_COST, CostModel
from sonoran.planning.scaling.hidden import HiddenDrafting
from sonoran.planning.scaling.laws import Laws
from sonoran.planning.scaling.planning import Optimum, Plan
from sonoran.planning.scaling.plot import render_plot
from sonoran.planning.scaling.quantities import format_count

LIMITS = (
    "The prediction is tokens per FLOP with one target pass charged 2M however many tokens it verifies. "
    "That is a proxy of latency at batch size 1, where reading the weights dominates; counted as "
    "operations, speculation never pays.",
    "Alpha is capped: even a draft as large as the target reaches only about 0.69 in the published plane."
    " How alpha grows with the draft fixes N*, and the shape assumed for it moves N* by up to 1.7 times.",
    "One plane serves all families (R2 0.60). What sets a target apart is mostly not its perplexity, so "
    "alpha of one pair can be off by 0.07. Measure it on your own pair before buying anything.",
    "The perplexities that the loss law gives are about half of those the plane was fitted on: every use "
    "of the two together, the paper's included, extrapolates.",
    "Batch size, context length, quantisation, temperature, mixtures of experts and launch overheads are "
    "not in the law; measured latencies are a way to bring in some of them.",
)
"""What the law does not know; also in docs/planning.md."""


def render_report(answer: Plan, *, laws: Laws | None = None, cost: CostModel = PUBLISHED_COST) -> str:
    """HTML of a plan made with the same ``laws`` and ``cost``. Raises PlanError without matplotlib."""
    drawing = render_plot(answer, laws=laws, cost=cost, form="svg")
    title = f"Draft plan for {answer.target}"
    parts = [f'<p class="lead">{escape(answer.sentence)}</p>']
    if answer.optimum is not None:
        parts.append(_tiles(answer.optimum, answer.hidden))
    parts.append(figure(drawing))
    parts += _candidates(answer)
    if answer.hidden is not None:
        parts += _hidden(answer.hidden)
    if answer.optimum is not None:
        parts += _rules(answer) + _variants(answer, answer.optimum)
    parts += ["<h2>Extrapolated or assumed here</h2>", items(note.text for note in answer.notes)]
    parts += ["<h2>What the law does not know</h2>", items(LIMITS)]
    return page(
        title,
        parts,
        f"Made by sonoran plan. Laws: {answer.laws_source}. Target: {answer.target_parameters:.0f} parameters, "
        f"{answer.target_tokens:.3g} training tokens; draft: {answer.draft_tokens:.3g} training tokens. Costs in "
        f"{answer.cost_unit}.",
    )


def _tiles(best: Optimum, hidden: HiddenDrafting | None) -> str:
    tiles = [
        (format_count(best.parameters), f"best draft, 1/{best.ratio:.0f} of the target"),
        (str(best.num_speculative_tokens), "tokens drafted per round (K)"),
        (
            f"{best.integer_speedup:.2f}x",
            f"plain decoding; {best.speedup_range[0]:.2f}x to {best.speedup_range[1]:.2f}x",
        ),
        (
            f"{best.alpha:.3f}",
            f"alpha; {best.alpha_range[0]:.2f} to {best.alpha_range[1]:.2f} for a single pair",
        ),
        (" to ".join(format_count(v) for v in best.within_1_percent), "within 1 % of the best throughput"),
    ]
    if best.interval is not None:
        tiles.append(
            (
                f"{format_count(best.interval.low)} to {format_count(best.interval.high)}",
                "95 %, measured targets drawn again",
            )
        )
    if hidden is not None:
        tiles.append(
            (format_count(hidden.ssd.parameters), f"best draft under SSD, {hidden.ssd.speedup:.2f}x")
        )
    cells = (
        f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _candidates(answer: Plan) -> list[str]:
    if not answer.candidates:
        return []
    rows = []
    for row in answer.candidates:
        spread = f"{row.speedup_range[0]:.2f} to {row.speedup_range[1]:.2f}" if row.speedup_range else ""
        alpha = "" if row.alpha is None else f"{row.alpha:.3f} ({row.alpha_source})"
        ratio = f"1/{row.ratio:.3g}"
        cells = (
            row.name,
            format_count(row.parameters),
            ratio,
            alpha,
            str(row.gamma),
            f"{row.speedup:.2f}x",
            spread,
        )
        rows.append((*cells, f"{row.ssd_speedup:.2f}x", "yes" if row.pays else "no", row.note))
    head = ("draft", "size", "ratio", "alpha", "K", "speed-up", "95 %", "SSD", "pays", "note")
    return ["<h2>Candidates</h2>", table(head, rows, text={9})]


def _hidden(hidden: HiddenDrafting) -> list[str]:
    rows = [
        (
            name,
            format_count(choice.parameters),
            f"{choice.gamma:.0f}",
            f"{choice.alpha:.3f}",
            f"{choice.speedup:.2f}x",
        )
        for name, choice in (("SD: draft, then verify", hidden.sd), ("SSD: drafting hidden", hidden.ssd))
    ]
    limit = format_count(hidden.hidden_limit) if hidden.hidden_limit else "no size"
    keeps = format_count(hidden.break_even) if hidden.break_even else "none"
    return [
        "<h2>How much larger may the draft be when drafting is hidden?</h2>",
        f"<p>With a hit rate of {hidden.settings.hit_rate:.2g} and backup <i>{hidden.settings.backup}</i>, "
        f"the best draft is {hidden.size_ratio:.1f} times as large. Up to {limit}, its work at "
        f"K = {hidden.ssd.gamma:.0f} fits behind one verification; the largest draft with which SSD still "
        f"matches the best SD: {keeps}. The draft runs on its own device beside the target's.</p>",
        table(("mode", "best draft", "K", "alpha", "speed-up"), rows),
    ]


def _rules(answer: Plan) -> list[str]:
    rows = [
        (rule.name, format_count(rule.parameters), f"{rule.relative_error:+.0%}", f"{rule.throughput_kept:.1%}",
         "yes" if rule.in_range else "no")
        for rule in answer.rules
    ]  # fmt: skip
    head = ("rule", "draft", "error of N*", "throughput kept", "target in the fitted range")
    return ["<h2>Rules of thumb beside the full optimum</h2>", table(head, rows)]


def _variants(answer: Plan, best: Optimum) -> list[str]:
    rows = [
        (v.name, format_count(v.parameters), f"{v.parameters / best.parameters:.2f}") for v in answer.variants
    ]
    return [
        "<h2>N* under other assumptions</h2>",
        table(("assumption", "draft", "relative to the plan"), rows),
    ]
