"""Predictions beside published speeds of whole systems: what the planner's devices are worth."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sonoran.planning.scaling.devices import DeviceCost, find_device
from sonoran.planning.scaling.models import data_text, find_model
from sonoran.planning.scaling.planning import measured_alpha
from sonoran.planning.scaling.rates import SsdSettings, sd_rate, ssd_rate


@dataclass(frozen=True, slots=True)
class Check:
    """Speed-up over AR of one mode: predicted, its range for passes off by what devices are off, and published.

    ``fitted``: tokens per round were read from this very speed, so that agreement proves little.
    """

    pair: str
    run: str
    mode: str
    num_speculative_tokens: int
    predicted: float
    low: float
    high: float
    published: float
    fitted: bool
    source: str

    @property
    def within(self) -> bool:
        """Whether the published value lies within the range."""
        return self.low <= self.published <= self.high


def check_pairs() -> list[Check]:
    """Predict every published pair at its own draft lengths, from its tokens per round and the built-in devices."""
    rows: list[dict[str, Any]] = json.loads(data_text("pairs.json"))
    return [check for row in rows for check in _checks(row)]


def _checks(row: dict[str, Any]) -> list[Check]:
    target, draft = (float(find_model(row[role]).parameters) for role in ("target", "draft"))
    alpha = measured_alpha(row["draft"], row["tokens"])
    cost = DeviceCost(find_device(row["device"]), row["tp"])
    settings = SsdSettings(row["hit_rate"])

    def speedup(mode: str, of: DeviceCost) -> float:
        k = row[f"{mode}_k"]
        rate = (
            sd_rate(of, alpha, target, draft, k)
            if mode == "sd"
            else ssd_rate(of, settings, alpha, target, draft, k)
        )
        return float(rate) * float(of.verify(target, 0))

    found = []
    for mode in ("sd", "ssd"):
        low, high = (speedup(mode, of) for of in cost.bounds())
        found.append(
            Check(
                f"{row['target']} with {row['draft']}",
                row["run"],
                mode,
                row[f"{mode}_k"],
                speedup(mode, cost),
                low,
                high,
                row[mode] / row["ar"],
                mode in row["fitted"],
                row["source"],
            )
        )
    return found
