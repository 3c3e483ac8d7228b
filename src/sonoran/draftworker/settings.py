"""How a worker speculates for one client; travels in ``Hello``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

from sonoran.drafting.backup import BACKUPS, Backup
from sonoran.drafting.fan_out_policy import Rule
from sonoran.errors import ConfigError, nearest

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """``budget`` is the guesses kept per sequence, or ``auto``: what is best by the measured times.

    ``fan_out_primary`` and ``fan_out_backup`` are the lists of the rule ``explicit``, F_0 first. ``saguaro_c``
    below 1 turns Saguaro sampling on (rejection rule, temperature > 0). ``top_up`` drafts an unfinished branch on
    while that is worth the wait. A speculation ends where the draft gives less than ``least_chance`` that all of it is
    accepted; 0 never. Raises ConfigError.
    """

    num_speculative_tokens: int
    fan_out: Rule = "confidence"
    budget: int | str = 8
    fan_out_primary: tuple[int, ...] | None = None
    fan_out_backup: tuple[int, ...] | None = None
    backup: Backup = "auto"
    saguaro_c: float = 1.0
    top_up: bool = True
    least_chance: float = 0.5

    def __post_init__(self) -> None:
        for name in ("fan_out_primary", "fan_out_backup"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, tuple(int(v) for v in value))
        if self.fan_out not in get_args(Rule):
            raise ConfigError(f"unknown fan_out {self.fan_out!r}{nearest(str(self.fan_out), get_args(Rule))}")
        if self.backup not in BACKUPS:
            raise ConfigError(f"unknown backup {self.backup!r}{nearest(str(self.backup), BACKUPS)}")
        budget = self.budget
        if budget != AUTO and (
            isinstance(budget, bool) or not isinstance(budget, int) or not 1 <= budget <= 256
        ):
            raise ConfigError(f"budget must be from 1 to 256, or 'auto', got {budget!r}")
        for name in ("saguaro_c", "least_chance"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must lie in [0, 1], got {getattr(self, name)!r}")
        if (self.fan_out == "explicit") != (self.fan_out_primary is not None):
            raise ConfigError(
                "fan_out 'explicit' needs fan_out_primary, a list F_0..F_K; the other rules take none"
            )

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values for a message."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SpeculationSettings:
        """Read what a client sent; ConfigError for an unknown key or a value out of range."""
        known = [f.name for f in fields(cls)]
        for key in values:
            if key not in known:
                raise ConfigError(f"unknown speculation setting {key!r}{nearest(key, known)}")
        return cls(**values)
