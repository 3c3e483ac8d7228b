"""Measured pairs of models: reading CSV or JSON text, and refusing what cannot be true, line by line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sonoran.errors import PlanError, nearest, shown
from sonoran.models.untrusted import parse_json, refusing
from sonoran.planning.scaling.estimate import alpha_from_means

REQUIRED = ("draft", "target", "draft_perplexity", "target_perplexity")
OPTIONAL = ("alpha", "alpha_margin", "gamma", "rounds", "accepted")
_NUMBERS = (*REQUIRED[2:], *OPTIONAL)
_SHOWN = 5
LARGEST_PERPLEXITY, LARGEST_GAMMA, LARGEST_ROUNDS = 1e9, 1000, 1e15


@dataclass(frozen=True, slots=True)
class Measurement:
    """One pair: perplexities x of the draft and y of the target, acceptance rate per drafted token."""

    draft: str
    target: str
    x: float
    y: float
    alpha: float


@refusing("measurements", PlanError)
def parse_measurements(text: str, *, form: str) -> tuple[list[Measurement], list[str]]:
    """Read measurements; returns them with warnings about rows that are odd but usable.

    ``form`` is ``csv`` (header line) or ``json`` (a list of objects, or an object with ``measurements``).
    Columns: draft, target, draft_perplexity, target_perplexity, and either alpha (alpha_margin is allowed and
    ignored) or gamma, rounds, accepted: drafted tokens per round, number of rounds, accepted draft tokens in
    all of them. Rows of one pair with several gamma become one point by the fit of SDSL eq. 12 to 1 +
    accepted / rounds. Raises PlanError with the line numbers (JSON: entry numbers).
    """
    if form not in ("csv", "json"):
        raise PlanError(f"unknown measurement format {form!r}{nearest(form, ('csv', 'json'))}")
    rows = list(_csv_rows(text) if form == "csv" else _json_rows(text))
    if not rows:
        raise PlanError("no measurements: the file has no rows")
    problems: list[str] = []
    parsed: list[tuple[str, dict[str, Any]]] = []
    for where, raw in rows:
        row, complaints = _row(raw)
        problems += [f"{where}: {text}" for text in complaints]
        if not complaints:
            parsed.append((where, row))
    problems += _duplicates(parsed)
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise PlanError("; ".join(problems[:_SHOWN]) + more)
    return _combine(parsed), _odd(parsed)


def measurement_to_dict(point: Measurement) -> dict[str, Any]:
    """The JSON form of one measurement, as ``parse_measurements`` reads it."""
    return {
        "draft": point.draft,
        "target": point.target,
        "draft_perplexity": point.x,
        "target_perplexity": point.y,
        "alpha": point.alpha,
    }


def _csv_rows(text: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff")), skipinitialspace=True)
    header = [name.strip() for name in reader.fieldnames or []]
    if not header:
        raise PlanError("no measurements: the file is empty")
    reader.fieldnames = header
    _columns(header, "column")
    for row in reader:
        where = f"line {reader.line_num}"
        if None in row:
            raise PlanError(f"{where}: more fields than the header has columns ({len(header)})")
        if any((value or "").strip() for value in row.values()):
            yield where, {k: v.strip() for k, v in row.items() if v is not None and v.strip()}


def _json_rows(text: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    value = parse_json(text, PlanError)
    if isinstance(value, Mapping):
        value = value.get("measurements")
    if not isinstance(value, list):
        raise PlanError("JSON measurements must be a list of objects, or an object with 'measurements'")
    for number, row in enumerate(value, 1):
        if not isinstance(row, Mapping):
            raise PlanError(f"entry {number} must be an object, got {shown(row)}")
        _columns(list(row), f"entry {number}: key")
        yield f"entry {number}", {k: v for k, v in row.items() if v is not None}


def _columns(names: list[str], what: str) -> None:
    for name in names:
        if name not in REQUIRED + OPTIONAL:
            raise PlanError(f"{what} {name!r} is unknown{nearest(name, REQUIRED + OPTIONAL)}")
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise PlanError(f"missing {what}: {', '.join(missing)} (found: {', '.join(names)})")
    if "alpha" not in names and not {"gamma", "rounds", "accepted"} <= set(names):
        raise PlanError(
            f"missing {what}: alpha, or gamma with rounds and accepted (found: {', '.join(names)})"
        )


def _row(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    row: dict[str, Any] = {}
    problems = [f"{name} is empty" for name in REQUIRED if name not in raw]
    for name, value in raw.items():
        if name not in _NUMBERS:
            row[name] = str(value)
            continue
        try:
            row[name] = float(value)
        except (TypeError, ValueError, OverflowError):
            problems.append(f"{name} is not a number: {shown(value)}")
            continue
        if not abs(row[name]) < float("inf"):
            problems.append(f"{name} is not finite: {shown(value)}")
    if problems:
        return row, problems
    for name in ("draft_perplexity", "target_perplexity"):
        if not 1.0 < row[name] <= LARGEST_PERPLEXITY:
            problems.append(f"{name} must be above 1 and at most {LARGEST_PERPLEXITY:g}, got {row[name]:g}")
    if "alpha" in row:
        if not 0.0 < row["alpha"] < 1.0:
            problems.append(f"alpha must lie strictly between 0 and 1, got {row['alpha']:g}")
    elif not {"gamma", "rounds", "accepted"} <= set(row):
        problems.append("neither alpha nor gamma, rounds and accepted are given")
    else:
        problems += _counts(row["gamma"], row["rounds"], row["accepted"])
    return row, problems


def _counts(gamma: float, rounds: float, accepted: float) -> list[str]:
    problems = []
    if not 1 <= gamma <= LARGEST_GAMMA or gamma != int(gamma):
        problems.append(
            f"gamma must be a whole number of at least 1 and at most {LARGEST_GAMMA}, got {gamma:g}"
        )
    if not 1 <= rounds <= LARGEST_ROUNDS:
        problems.append(f"rounds must be at least 1 and at most {LARGEST_ROUNDS:g}, got {rounds:g}")
    if not problems and not 0 < accepted < gamma * rounds:
        problems.append(
            f"accepted must lie strictly between 0 and gamma x rounds = {gamma * rounds:g}, got {accepted:g}"
        )
    return problems


def _duplicates(parsed: list[tuple[str, dict[str, Any]]]) -> list[str]:
    seen: dict[tuple[str, str], dict[float | None, str]] = {}  # of a pair: where which gamma was given
    problems = []
    for where, row in parsed:
        given = seen.setdefault((row["draft"], row["target"]), {})
        gamma = None if "alpha" in row else row["gamma"]
        # An alpha says it all, so there is either one of it or counts, each gamma once.
        clash = given.get(gamma, given.get(None)) if gamma is not None else next(iter(given.values()), None)
        if clash is not None:
            problems.append(f"{where}: {row['draft']} with {row['target']} was already given at {clash}")
        given.setdefault(gamma, where)
    return problems


def _odd(parsed: list[tuple[str, dict[str, Any]]]) -> list[str]:
    known: dict[tuple[str, str], tuple[float, str]] = {}
    warnings = []
    for where, row in parsed:
        for role in ("draft", "target"):
            value = row[f"{role}_perplexity"]
            first, place = known.setdefault((role, row[role]), (value, where))
            if value != first:
                warnings.append(
                    f"{role} {row[role]} has perplexity {first:g} at {place} and {value:g} at {where}"
                )
    return warnings


def _combine(parsed: list[tuple[str, dict[str, Any]]]) -> list[Measurement]:
    pairs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _, row in parsed:
        pairs.setdefault((row["draft"], row["target"]), []).append(row)
    points = []
    for (draft, target), rows in pairs.items():
        if "alpha" in rows[0]:
            alpha = rows[0]["alpha"]
        else:
            means = {int(row["gamma"]): row["accepted"] / row["rounds"] for row in rows}
            alpha = alpha_from_means(means)
        points.append(
            Measurement(draft, target, rows[0]["draft_perplexity"], rows[0]["target_perplexity"], alpha)
        )
    return points
