"""What measured speeds come to, in a few sentences: what is fastest, why, and what to type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ALIKE = 0.03
"""Speeds that differ by less are not told apart."""


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
