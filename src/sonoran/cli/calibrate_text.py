"""What ``sonoran calibrate`` says: its tables, and its JSON of an explanation."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from sonoran.cli.common import out, say
from sonoran.planning.profile.advice import Advice
from sonoran.planning.profile.choose import Choice, choose
from sonoran.planning.profile.placement import Workload
from sonoran.planning.profile.predict import Prediction, predict_all
from sonoran.planning.profile.profile import Measured, Profile
from sonoran.planning.profile.replay import replay_lengths
from sonoran.theory.speedup import tokens_from_lengths

BATCHES = (1, 8)


@dataclass(slots=True)
class Explanation:
    """Everything that is printed for one workload."""

    workload: Workload
    predictions: list[Prediction]
    shown: list[Prediction]
    choice: Choice
    advice: list[Advice]
    measured: list[Measured] = field(default_factory=list)

    def document(self, profile: Profile) -> dict[str, Any]:
        """Return one JSON document."""
        measured = {v.label: v for v in self.measured}

        def row(p: Prediction) -> dict[str, Any]:
            found = measured.get(p.label)
            return {
                "label": p.label,
                **{key: value for key, value in asdict(p).items() if key != "placement"},
                "target_cores": p.placement.target_cores,
                "draft_cores": p.placement.draft_cores,
                "hidden": p.hidden,
                "measured_tokens_per_s": found.measured if found else None,
                "error": found.error if found else None,
            }

        return {
            "workload": asdict(self.workload),
            "profile": profile.summary(),
            "choice": {
                "label": self.choice.best.label,
                "reason": self.choice.reason,
                "gain": self.choice.gain,
            },
            "candidates": [row(p) for p in self.shown],
            "verified": [{**asdict(v), "error": v.error} for v in self.measured],
            "advice": [asdict(a) for a in self.advice],
        }


def choices(profile: Profile) -> list[dict[str, Any]]:
    """Return the choice for common workloads: batch 1 and 8, greedy and each measured temperature."""
    found = []
    for temperature in sorted({0.0, *(a.temperature for a in profile.acceptance)}):
        for batch in BATCHES:
            workload = Workload(batch=batch, temperature=temperature)
            choice = choose(predict_all(profile, workload))
            found.append(
                {
                    "batch": batch,
                    "temperature": temperature,
                    "choice": choice.best.label,
                    "tokens_per_s": choice.best.tokens_per_s,
                    "gain": choice.gain,
                    "reason": choice.reason,
                }
            )
    return found


def print_profile(profile: Profile) -> None:
    """Print what was measured and what follows from it."""
    draft = profile.key.draft.name if profile.key.draft else "no draft"
    machine = profile.key.machine
    out.print(Text.assemble((profile.key.target.name, "bold"), f" with {draft}"))
    say(
        f"{machine.processor}, {machine.kernels}, cores {','.join(map(str, machine.cores))}; {profile.created}, "
        f"{profile.elapsed_s:.0f} s" + (", quick" if profile.quick else ""),
        style="dim",
    )
    say(profile.verdict, style="red" if profile.noisy else "green")
    out.print(_passes(profile))
    if profile.acceptance:
        out.print(_acceptance(profile))
    say(
        f"engine {profile.host.ms:.2f} ms per round, message {profile.message.ms:.2f} ms"
        + "".join(
            f"; temperature {s.temperature:g}: {s.row.ms:.2f} ms per verified row, {s.token.ms:.2f} per drafted "
            f"token, {s.guess.ms:.2f} per prediction"
            for s in profile.sampling
        ),
        style="dim",
    )
    for choice in choices(profile):
        say(f"batch {choice['batch']}, temperature {choice['temperature']:g}: {choice['reason']}")


def print_explanation(answer: Explanation, profile: Profile) -> None:
    """Print the choice, the candidates and what would make it faster."""
    say(answer.choice.reason, style="bold")
    if profile.noisy or profile.quick:
        remark = (
            profile.verdict if profile.noisy else "from a quick measurement; sonoran calibrate tells more"
        )
        say(remark, style="red")
    out.print(_candidates(answer))
    if answer.advice:
        say("What would make it faster:", style="bold")
    for advice in answer.advice:
        say(f"  {advice.gain:.2f}x, {advice.tokens_per_s:.1f} tokens/s: {advice.what}")


def _passes(profile: Profile) -> Table:
    rows = sorted({point.rows for curve in profile.passes for point in curve.points})
    shown = [n for n in rows if n in (1, 2, 4, 8, 16, 32)] or rows
    table = Table(box=None, header_style="bold", title="ms of a pass by rows", title_justify="left")
    table.add_column("model, cores", no_wrap=True)
    table.add_column("context", justify="right")
    for n in shown:
        table.add_column(str(n), justify="right")
    table.add_column("spread", justify="right")
    for curve in profile.passes:
        times = {point.rows: point.time for point in curve.points}
        where = ",".join(map(str, curve.cores)) + (" beside" if curve.beside is not None else "")
        spread = sorted(time.spread for time in times.values())[len(times) // 2]
        table.add_row(
            f"{curve.role} {where}",
            str(curve.context),
            *(f"{times[n].ms:.1f}" if n in times else "-" for n in shown),
            f"{spread:.0%}",
        )
    return table


def _acceptance(profile: Profile) -> Table:
    table = Table(
        box=None,
        header_style="bold",
        title="acceptance; tokens per round with K = 4; bonus token after a rejection among 1 and 4 guesses",
        title_justify="left",
    )
    for title in ("rule, T", "accepted", "+-", "K = 4", "in 1", "in 4", "positions", "perplexity"):
        table.add_column(title, justify="left" if title.startswith("rule") else "right")
    for found in profile.acceptance:
        tokens = f"{tokens_from_lengths(replay_lengths(found, 4)):.2f}" if found.longest > 4 else "-"
        perplexities = [p for p in (found.target_perplexity, found.draft_perplexity) if p is not None]
        table.add_row(
            f"{found.verification}, {found.temperature:g}",
            f"{found.rate:.0%}",
            f"{found.standard_error:.1%}",
            tokens,
            f"{found.rejected_cdf[1]:.0%}",
            f"{found.rejected_cdf[4]:.0%}",
            str(found.positions),
            " / ".join(f"{p:.2f}" for p in perplexities) or "-",
        )
    return table


def _candidates(answer: Explanation) -> Table:
    plain = answer.choice.by_mode["ar"].tokens_per_s
    measured = {v.label: v for v in answer.measured}
    table = Table(box=None, header_style="bold")
    titles = ["mode", "K", "budget", "backup", "cores", "tokens/s", "x AR", "hits"]
    titles += ["measured", "error"] if measured else []
    for title in titles:
        table.add_column(
            title, justify="left" if title in ("mode", "backup", "cores") else "right", no_wrap=True
        )
    for p in answer.shown:
        cells = [
            ("* " if p == answer.choice.best else "  ") + p.mode.upper(),
            str(p.num_speculative_tokens or "-"),
            str(p.budget or "-"),
            p.backup or "-",
            str(p.placement),
            f"{p.tokens_per_s:.1f}",
            f"{p.tokens_per_s / plain:.2f}",
            "-" if p.hit_rate is None else f"{p.hit_rate:.2f}",
        ]
        if measured:
            found = measured.get(p.label)
            cells += ["-", "-"] if found is None else [f"{found.measured:.1f}", f"{found.error:+.0%}"]
        table.add_row(*cells)
    return table
