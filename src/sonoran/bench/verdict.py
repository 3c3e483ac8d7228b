"""What measured speeds come to: a table, and a few sentences on what is fastest, why, and what to type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ALIKE = 0.03
"""Speeds that differ by less are not told apart."""


def base_of(modes: Mapping[str, Any]) -> str:
    """Return the mode that others are compared with: the first autoregressive one, else the first."""
    return next((name for name in modes if name.startswith("ar")), next(iter(modes)))


def speed_table(
    modes: Mapping[str, Mapping[str, Any]], nothing: str = "-"
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return titles and a row for each mode of ``bench decode``; ``nothing`` stands for what does not apply."""
    base = base_of(modes)
    plain = modes[base]["tokens_per_s"]
    head = ("mode", "tokens/s", "spread", f"x {base}", "first token, s", "accepted", "per round", "hits")

    def cell(value: float | None, form: str) -> str:
        return nothing if value is None else format(value, form)

    return head, [
        (
            name,
            f"{mode['tokens_per_s']:.1f}",
            f"{mode['spread']:.0%}",
            f"{mode['tokens_per_s'] / plain:.2f}",
            f"{mode['ttft_s']:.2f}",
            cell(mode["acceptance_rate"], ".0%"),
            cell(mode["mean_acceptance_length"], ".2f"),
            cell(mode["hit_rate"], ".0%"),
        )
        for name, mode in modes.items()
    ]


def verdict(modes: Mapping[str, Mapping[str, Any]], plain: str | None, commands: Mapping[str, str]) -> str:
    """Return the sentences.

    ``modes`` have ``tokens_per_s`` and, where drafts were verified, ``mean_acceptance_length``; ``plain`` is the
    autoregressive mode on the same cores, if it was measured; ``commands`` says what to type for a mode, where anything.
    """
    speeds = {name: mode["tokens_per_s"] for name, mode in modes.items()}
    best = max(speeds, key=lambda name: speeds[name])
    alike = [name for name in speeds if name != best and speeds[best] < speeds[name] * (1 + ALIKE)]
    text = f"Fastest here: {best}, {speeds[best]:.1f} tokens/s"
    if plain is not None and best != plain and speeds[plain] > 0:
        text += f", {speeds[best] / speeds[plain]:.2f} x {plain}"
    text += f" ({', '.join(alike)} within {ALIKE:.0%})." if alike else "."
    explained = best if _length(modes[best]) else _fastest_drafted(modes)
    if plain is not None and explained is not None and speeds[explained] > 0:
        length = _length(modes[explained])
        cost = length * speeds[plain] / speeds[explained]
        text += f" A round of {explained} yields {length:.2f} tokens and lasts as long as {cost:.2f} tokens of {plain}."
    if best in commands:
        text += f" Type: {commands[best]}"
    return text


def _length(mode: Mapping[str, Any]) -> float:
    return mode["mean_acceptance_length"] or 0.0


def _fastest_drafted(modes: Mapping[str, Mapping[str, Any]]) -> str | None:
    drafted = [name for name, mode in modes.items() if _length(mode)]
    return max(drafted, key=lambda name: modes[name]["tokens_per_s"], default=None)
