"""Built-in table of well-known open models: parameters, training tokens, vocabulary, context, sources."""

from __future__ import annotations

import difflib
import functools
import json
import re
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from typing import Any

from sonoran.errors import PlanError
from sonoran.planning.scaling.acceptance import PUBLISHED_PLANE, fit_measurements
from sonoran.planning.scaling.laws import Anchor, Laws
from sonoran.planning.scaling.loss import BESIROGLU, CALIBRATED, LossLaw
from sonoran.planning.scaling.measurements import Measurement, parse_measurements
from sonoran.planning.scaling.uncertainty import anchored_error, scatter


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
    fit = fit_measurements(points)
    return Laws(
        loss=BESIROGLU,
        acceptance=PUBLISHED_PLANE,
        x_range=fit.x_range,
        y_range=fit.y_range,
        r2=fit.regression.r2,
        residual_sd=fit.regression.residual_sd,
        scatter=scatter(points, fit.regression.residual_sd),
        measurements=points,
        source="SDSL (arXiv 2603.11053), Table 3",
    )


def published_size(name: str) -> tuple[float, float]:
    """Parameters and training tokens of a model of the published measurements."""
    tables = published_tables()
    if name in tables["draft_parameters"]:
        return tables["draft_parameters"][name], tables["draft_tokens"][name.rsplit("-", 1)[0]]
    return tables["target_parameters"][name], tables["target_tokens_used"][name]


@functools.cache
def published_anchored_error(loss: LossLaw) -> float:
    """Error of alpha on the published pairs, predicted from sizes by ``loss`` and shifted through one pair."""

    def predict(point: Measurement) -> tuple[float, float]:
        return (
            float(loss.perplexity(*published_size(point.draft))),
            float(loss.perplexity(*published_size(point.target))),
        )

    found = anchored_error(published_measurements(), predict)
    assert found is not None  # 13 targets of 10 drafts
    return found


def anchored(laws: Laws, anchors: tuple[Anchor, ...]) -> Laws:
    """Move the laws through measured pairs of one target.

    How alpha changes from draft to draft then rests on the scale of the perplexities alone, so the default loss law
    gives way to the one calibrated to measured perplexities. Laws of one's own keep theirs.
    """
    if not anchors:
        return laws
    published = laws.measurements == published_measurements()
    loss = CALIBRATED if published and laws.loss == BESIROGLU else laws.loss
    if published:
        error: float | None = published_anchored_error(loss)
    else:
        error = anchored_error(laws.measurements, lambda point: (point.x, point.y))
    return replace(laws, loss=loss, anchors=anchors, anchored_sd=laws.residual_sd if error is None else error)


_NOISE = re.compile(
    r"hf|instruct|chat|it|pt|base|meta|gguf|awq|gptq|fp8|int[48]|bf16|f16|f32|mlx|[1-9]bit|bnb|qat|unsloth|[0-9]{4}"
    r"|(i?q|tq)[1-8]|k|m|s|l|xs|xxs|nl"
)
"""Parts of a checkpoint's name that say nothing about size or data: tuning, format, precision, month, packager."""
_VERSION = re.compile(r"v[0-9.]+")


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
    layers: int
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


def _essence(text: str, *, versions: bool) -> str:
    """The parts of a name that tell models apart, with or without versions such as v0.3."""
    parts = re.split(r"[-_/ ]|\.(?=i?q[1-8]|tq[12]|b?f16|f32|gguf)", text.strip().lower())
    kept = [p for p in parts if not _NOISE.fullmatch(p) and (versions or not _VERSION.fullmatch(p))]
    return _plain("".join(kept))


def find_model(text: str) -> KnownModel:
    """Look up ``FAMILY/NAME``, a hub identifier, ``FAMILY-NAME`` or the name of a file.

    Case, packager and parts such as Instruct, GGUF, AWQ, Q4_K_M or 2507 do not matter.

    Raises PlanError that names the nearest family, or the sizes of the family.
    """
    if not text.strip():
        raise PlanError("the name of a model is empty; examples: Qwen2.5/72B, Llama-3.1/70B")
    # Others repackage models under a name of their own: the part behind the slash says which.
    asked = [text.strip()] + ([text.split("/", 1)[1]] if "/" in text else [])
    for essence in (_plain, partial(_essence, versions=True), partial(_essence, versions=False)):
        wanted = {essence(spelling) for spelling in asked}
        for model in known_models():
            spellings = (model.key, model.hub, model.hub.split("/", 1)[1], f"{model.family}-{model.name}")
            if wanted & {essence(spelling) for spelling in spellings}:
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


def published_alphas(target: KnownModel) -> dict[str, float]:
    """Acceptance rates that SDSL measured for a target (HellaSwag), by the draft's key in the table."""
    found = {}
    for point in published_measurements():
        if _plain(point.target) == _plain(target.key):
            found[find_model(point.draft).key] = point.alpha
    return found


def drafts_for(target: KnownModel) -> tuple[KnownModel, ...]:
    """Models of at most half the size with the target's tokenizer, smallest first; code models for code models."""
    code = "Coder" in target.family
    found = [
        model
        for model in known_models()
        if model.tokenizer == target.tokenizer
        and model.parameters * 2 <= target.parameters
        and ("Coder" in model.family) == code
    ]
    return tuple(sorted(found, key=lambda model: model.parameters))
