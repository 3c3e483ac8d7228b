"""Files that ``sonoran plan`` reads and writes; every failure is a PlanError with the file's name."""

from __future__ import annotations

import dataclasses
import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonoran.errors import PlanError, nearest

if TYPE_CHECKING:
    from sonoran.planning.scaling import Candidate, CostModel, Laws


def read_laws(path: Path | None, loss: str | None) -> Laws:
    """Laws from a file or the published ones, with another loss law if asked."""
    from sonoran.planning.scaling import laws_from_json, published_laws
    from sonoran.planning.scaling.loss import parse_loss_law

    found = published_laws() if path is None else laws_from_json(read(path, "laws"))
    return found if loss is None else dataclasses.replace(found, loss=parse_loss_law(loss))


def read_cost(latencies: Path | None, slope: float, floor: float, factor: float) -> CostModel:
    """Cost model from measured latencies, or from the three shares."""
    from sonoran.planning.scaling import ParameterCost, measured_cost_from_dict

    if latencies is None:
        return ParameterCost(slope, floor, factor)
    if (slope, floor, factor) != (0.0, 0.0, 1.0):
        raise PlanError(
            "--latencies replaces --verify-slope, --draft-floor and --draft-factor: give one or the other"
        )
    value = _parse_json(read(latencies, "latencies"), str(latencies))
    if not isinstance(value, dict):
        raise PlanError(f"{latencies}: latencies must be a JSON object with 'target' and 'drafts'")
    return measured_cost_from_dict(value)


def read_candidates(given: str) -> list[Candidate]:
    """Candidates from a JSON file or from names with commas."""
    from sonoran.planning.scaling import find_model, parse_candidates
    from sonoran.planning.scaling.candidates import candidate_of

    if given.lower().endswith(".json"):
        return parse_candidates(read(Path(given), "candidates"))
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise PlanError("--candidates is empty; give a JSON file or names such as Qwen2.5/0.5B,Qwen2.5/1.5B")
    return [candidate_of(find_model(name)) for name in dict.fromkeys(names)]


def _parse_json(text: str, where: str) -> Any:
    try:
        return jsonlib.loads(text)
    except jsonlib.JSONDecodeError as error:
        raise PlanError(f"{where} is not JSON: line {error.lineno}: {error.msg}") from None


def suffix(path: Path | None, valid: tuple[str, ...], what: str) -> str | None:
    """The lower-case ending of a file name, which must be one of ``valid``."""
    if path is None:
        return None
    ending = path.suffix.lower().lstrip(".")
    if ending not in valid:
        wanted = nearest(ending, valid) if ending else f"; valid: {', '.join(valid)}"
        raise PlanError(
            f"{what}: the file name {str(path)!r} must end in {' or '.join('.' + v for v in valid)}{wanted}"
        )
    return ending


def read(path: Path, what: str) -> str:
    """Text of a file the user named."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise PlanError(f"cannot read the {what} file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PlanError(f"the {what} file {path} is not UTF-8 text") from None


def write(path: Path, data: bytes) -> None:
    """Write a file the user named."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise PlanError(f"cannot write {path}: {error.strerror}") from None
