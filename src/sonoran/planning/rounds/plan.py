"""What is simulated: one mode with its settings, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from sonoran.errors import PlanError, nearest
from sonoran.theory.speedup import lookahead

RoundMode = Literal["ar", "sd", "ssd"]
"""The modes whose rounds are modelled; no profile knows how often n-grams are accepted."""

FixedBackup = Literal["draft", "ngram", "random", "none"]
FIXED_BACKUPS: tuple[FixedBackup, ...] = get_args(FixedBackup)


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Mode and settings of a run.

    ``fan_out`` is F_0..F_K. ``early_answers``: an outcome that arrives before the draft has finished gets what is
    there, drafted on while that pays; else the target waits for the whole round. Raises PlanError.
    """

    mode: RoundMode
    num_speculative_tokens: int = 0
    batch: int = 1
    fan_out: tuple[int, ...] = ()
    backup: FixedBackup = "draft"
    early_answers: bool = True

    def __post_init__(self) -> None:
        k = lookahead(self.num_speculative_tokens)
        if self.mode not in get_args(RoundMode):
            raise PlanError(f"unknown mode {self.mode!r}{nearest(str(self.mode), get_args(RoundMode))}")
        if self.backup not in FIXED_BACKUPS:
            raise PlanError(f"unknown backup {self.backup!r}{nearest(str(self.backup), FIXED_BACKUPS)}")
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise PlanError(f"batch must be a whole number of at least 1, got {self.batch!r}")
        if self.mode == "ssd" and (
            k == 0 or len(self.fan_out) != k + 1 or min(self.fan_out) < 0 or sum(self.fan_out) < 1
        ):
            raise PlanError(
                f"SSD with K = {k} needs K >= 1 and a fan_out of K + 1 numbers >= 0, not all 0; "
                f"got {list(self.fan_out)!r}"
            )
        if self.mode == "sd" and k == 0:
            raise PlanError("SD with 0 speculative tokens is autoregressive decoding; nearest valid value: 1")


@dataclass(frozen=True, slots=True)
class RoundAverages:
    """Averages over a run; ``hit_rate`` and the lengths are None where they mean nothing.

    ``tokens_per_s`` is of the whole batch, ``tokens_per_round`` of one row. ``wait_ms`` is what of a round is
    neither verification nor the target's own work, ``draft_round_ms`` the draft's work beside it. ``cut_rate`` is
    the share of hits whose branch was not finished when the outcome came.
    """

    mode: RoundMode
    tokens_per_s: float
    tokens_per_round: float
    round_ms: float
    verify_ms: float
    wait_ms: float
    rounds: int
    acceptance_rate: float | None = None
    hit_rate: float | None = None
    hit_rate_after_primary: float | None = None
    hit_rate_after_backup: float | None = None
    tokens_hit: float | None = None
    tokens_miss: float | None = None
    cut_rate: float | None = None
    draft_round_ms: float | None = None
