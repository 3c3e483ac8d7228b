"""Built-in table of well-known open models: parameters, training tokens, vocabulary, context, sources."""

from __future__ import annotations

import difflib
import functools
import json
import re
from dataclasses import dataclass
from importlib import resources
from typing import Any

from sonoran.errors import PlanError
from sonoran.planning.scaling.acceptance import PUBLISHED_PLANE
from sonoran.planning.scaling.laws import Laws, fit_measurements
from sonoran.planning.scaling.loss import BESIROGLU
from sonoran.planning.scaling.measurements import Measurement, parse_measurements


def data_text(name: str) -> str:
    """Text of a data file of this package."""
    return (resources.files("sonoran.planning.scaling") / "data" / name).read_text(encoding="utf-8")


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


_SUFFIXES = re.compile(r"(-hf|-instruct|-chat|-it|-pt|-base)+$")


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One dense open model. Embeddings count as parameters; ``tokens`` is None where not published."""

    family: str
    name: str
    hub: str
    parameters: int
    tokens: int | None
    vocabulary: int  # rows of the output matrix, padding included
    context: int
    tokenizer: str  # models with the same value can speculate for one another
    source: str

    @property
    def key(self) -> str:
        """``FAMILY/NAME``, the spelling of the command line."""
        return f"{self.family}/{self.name}"


@functools.cache
def known_models() -> tuple[KnownModel, ...]:
    """Every model of the table."""
    return tuple(KnownModel(**row) for row in json.loads(data_text("models.json")))


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", text.lower())


def find_model(text: str) -> KnownModel:
    """Look up ``FAMILY/NAME``, a hub identifier or ``FAMILY-NAME``; case and -Instruct endings do not matter.

    Raises PlanError that names the nearest family, or the sizes of the family.
    """
    wanted = _SUFFIXES.sub("", text.strip().lower())
    if not wanted:
        raise PlanError("the name of a model is empty; examples: Qwen2.5/72B, Llama-3.1/70B")
    plain = _plain(wanted)
    for model in known_models():
        hub = _SUFFIXES.sub("", model.hub.lower())
        spellings = (model.key, hub, hub.split("/", 1)[1], f"{model.family}-{model.name}")
        if plain in {_plain(spelling) for spelling in spellings}:
            return model
    head = text.split("/", 1)[0].strip() if "/" in text else re.split(r"-(?=[0-9.]+[bBmM])", text)[0]
    families = {_plain(model.family): model.family for model in known_models()}
    if _plain(head) in families:
        family = families[_plain(head)]
        sizes = ", ".join(model.key for model in known_models() if model.family == family)
        raise PlanError(f"unknown model {text!r}; known of this family: {sizes}")
    match = difflib.get_close_matches(_plain(head), families, n=1, cutoff=0.6)
    if match:
        close = f"; did you mean {families[match[0]]!r}?"
    else:
        close = "; known families: " + ", ".join(sorted(families.values()))
    raise PlanError(
        f"unknown family {head!r} in {text!r}{close} (or give --target-params and --target-tokens)"
    )


def drafts_for(target: KnownModel) -> tuple[KnownModel, ...]:
    """Smaller models with the target's tokenizer, smallest first; code models only for code models."""
    code = "Coder" in target.family
    found = [
        model
        for model in known_models()
        if model.tokenizer == target.tokenizer
        and model.parameters < target.parameters
        and ("Coder" in model.family) == code
    ]
    return tuple(sorted(found, key=lambda model: model.parameters))
