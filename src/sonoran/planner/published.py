"""The paper's own numbers, shipped with the package, and the laws that follow from them."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

from sonoran.planner.acceptance import PUBLISHED_PLANE
from sonoran.planner.laws import BESIROGLU
from sonoran.planner.lawset import Laws, fit_measurements
from sonoran.planner.measurements import Measurement, parse_measurements


def data_text(name: str) -> str:
    """Text of a data file of this package."""
    return resources.files("sonoran.planner").joinpath("data", name).read_text(encoding="utf-8")


@functools.cache
def published_tables() -> dict[str, Any]:
    """Tables 3, 4, 5, 6, 8 and 9 of the paper, with the sizes and token counts behind them. Do not modify."""
    tables: dict[str, Any] = json.loads(data_text("published.json"))
    return tables


@functools.cache
def published_measurements() -> tuple[Measurement, ...]:
    """The 130 pairs of Tables 1 and 2, with the target perplexities of Table 2."""
    points, _ = parse_measurements(data_text("paper_measurements.csv"), form="csv")
    return tuple(points)


@functools.cache
def published_laws() -> Laws:
    """The default laws: the plane as printed in Table 3, Besiroglu's losses, the paper's measurements."""
    points = published_measurements()
    fit = fit_measurements(list(points))
    return Laws(
        loss=BESIROGLU,
        acceptance=PUBLISHED_PLANE,
        x_range=fit.x_range,
        y_range=fit.y_range,
        r2=fit.regression.r2,
        residual_sd=fit.regression.residual_sd,
        measurements=points,
        source="SDSL (arXiv 2603.11053), Table 3",
    )
