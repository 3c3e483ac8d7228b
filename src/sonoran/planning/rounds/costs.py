"""What the steps of a round cost, in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sonoran.errors import PlanError, nearest, shown
from sonoran.theory.latency import LatencyCurve
from sonoran.theory.speedup import non_negative

_TIMES = ("service_ms", "message_ms", "host_ms", "row_ms", "token_ms", "guess_ms")


@dataclass(frozen=True, slots=True)
class Costs:
    """Times of one placement of target and draft.

    ``target`` and ``draft`` are passes by rows, undisturbed. ``target_beside`` and ``draft_beside`` are the same
    while the other model works, as in SSD (default: undisturbed). ``trunk`` and ``tree`` are the draft's passes of
    an SSD round (default: ``draft_beside``). ``service_ms`` is lookup and reply, ``message_ms`` the round trip of a
    message, ``guess_ms`` what outcome prediction takes per sequence, ``token_ms`` what the draft's sampling takes
    per drafted token, ``host_ms`` and ``row_ms`` what the target's side takes per round and per emitted token.
    Raises PlanError.
    """

    target: LatencyCurve
    draft: LatencyCurve
    target_beside: LatencyCurve | None = None
    draft_beside: LatencyCurve | None = None
    trunk: LatencyCurve | None = None
    tree: LatencyCurve | None = None
    service_ms: float = 0.0
    message_ms: float = 0.0
    host_ms: float = 0.0
    row_ms: float = 0.0
    token_ms: float = 0.0
    guess_ms: float = 0.0
    measured: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, rows in self.measured.items():
            if not isinstance(getattr(self, name, None), LatencyCurve):
                raise PlanError(f"measured names {name!r}, which is no latency curve of these costs")
            if isinstance(rows, bool) or not isinstance(rows, (int, float)) or not rows >= 1:
                raise PlanError(f"measured rows of {name} must be a number of at least 1, got {rows!r}")
        for name in _TIMES:
            if not isinstance(getattr(self, name), (int, float)):
                raise PlanError(f"{name} must be a number of ms, got {shown(getattr(self, name))}")
            non_negative(name, getattr(self, name))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Costs:
        """Read the form of a preset: curves as ``{"rows": ms}``. Raises PlanError naming the nearest key."""
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                raise PlanError(f"unknown cost {key!r}{nearest(str(key), known)}")
        for key in ("target", "draft"):
            if key not in values:
                raise PlanError(f"costs need {key!r}: milliseconds of a pass by rows")
        read: dict[str, Any] = {
            key: value if key in _TIMES or key == "measured" else LatencyCurve.of(value)
            for key, value in values.items()
            if value is not None
        }
        if not isinstance(read.get("measured", {}), Mapping):
            raise PlanError(f"measured must map curves to rows, got {read['measured']!r}")
        return cls(**read)

    def verify_ms(self, rows: int, beside: bool = False) -> float:
        """Time of the target's pass of ``rows`` rows."""
        curve = self.target_beside if beside and self.target_beside is not None else self.target
        return curve(rows)

    def after_pass_ms(self, tokens: float) -> float:
        """What the target's side adds to a pass that yields ``tokens``: sampling them, bookkeeping."""
        return self.host_ms + self.row_ms * tokens

    def draft_ms(self, rows: int, beside: bool = False) -> float:
        """Time of a draft pass that draws one token for each of ``rows`` rows."""
        curve = self.draft_beside if beside and self.draft_beside is not None else self.draft
        return curve(rows) + self.token_ms * rows

    def drafting_ms(self, num_speculative_tokens: int, batch: int, all_accepted: float) -> float:
        """Time of SD's K draft passes. The first also reads the last drafted token where all were accepted."""
        if num_speculative_tokens < 1:
            return 0.0
        first = self.draft(batch * (1.0 + all_accepted)) + self.token_ms * batch
        return first + (num_speculative_tokens - 1) * self.draft_ms(batch)

    def trunk_ms(self, rows: int, sequences: int = 1) -> float:
        """Time of the draft's trunk pass and of predicting outcomes from it."""
        return (self.trunk or self.draft_beside or self.draft)(rows) + self.guess_ms * sequences

    def tree_ms(self, rows: int) -> float:
        """Time of one step of tree decoding over ``rows`` branches."""
        if rows <= 0:
            return 0.0
        return (self.tree or self.draft_beside or self.draft)(rows) + self.token_ms * rows

    def measured_rows(self, name: str) -> float:
        """Up to how many rows a curve was measured; a missing one stands for the draft's."""
        curve = getattr(self, name)
        return self.measured_rows("draft") if curve is None else self.measured.get(name, curve.largest)
