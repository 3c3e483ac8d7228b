"""When a worker that answers in time is not worth waiting for, and when to try again. Pure: the clock is the caller's."""

from __future__ import annotations

TOLERATED_S = 0.02
"""Waiting that no round is blamed for, in seconds: passes of tiny models are shorter than any reply."""

MOST_LOST_S = 0.5
"""Seconds that speculation may have cost on balance before it is given up."""

PAUSE_PER_LOSS = 10.0
LONGEST_PAUSE_S = 60.0
TRUSTED_AFTER = 64
"""Rounds in credit after which earlier pauses are forgotten."""


class Patience:
    """Weighs what rounds waited for a draft worker against what its speculations saved.

    A round of n sequences that emitted t tokens did the work of t / n passes in one, so waiting pays while it is shorter
    than (t / n - 1) passes. What it was longer adds up; beyond ``most_lost_s`` the worker is not asked for ten times as
    long as was lost, and twice that with every trial that fails, so that trials cost little. ``given_up`` counts pauses.
    """

    def __init__(self, most_lost_s: float = MOST_LOST_S) -> None:
        self.given_up = 0
        self._most_lost_s = most_lost_s
        self._lost_s = 0.0
        self._resume_at = 0.0
        self._failures = 0
        self._in_credit = 0

    def asks(self, now: float) -> bool:
        """Return whether the worker should be asked at the time ``now``, in seconds."""
        return now >= self._resume_at

    def observe(self, now: float, waited_s: float, round_s: float, tokens: int, sequences: int) -> bool:
        """Count a round of ``round_s`` seconds, ``waited_s`` of them for the worker; return whether to give it up.

        ``tokens`` were emitted by the ``sequences`` whose speculation was verified.
        """
        if sequences < 1:
            return False
        saved_s = max(0.0, round_s - waited_s) * (tokens / sequences - 1.0)
        cost_s = waited_s - saved_s - TOLERATED_S
        self._lost_s = max(0.0, self._lost_s + cost_s)
        self._in_credit = self._in_credit + 1 if cost_s <= 0.0 else 0
        if self._in_credit >= TRUSTED_AFTER:
            self._failures = 0
        if self._lost_s <= self._most_lost_s:
            return False
        pause_s = PAUSE_PER_LOSS * self._lost_s * 2.0 ** min(self._failures, 10)
        self._resume_at = now + min(pause_s, LONGEST_PAUSE_S)
        self._failures += 1
        self.given_up += 1
        self._lost_s, self._in_credit = 0.0, 0
        return True
