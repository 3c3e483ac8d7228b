"""Rounds of a given K and fan-out over the traces: what would have been accepted and hit, without a model of chance.

Correlations that laws of independent rounds miss (hard text follows hard text, misses come in runs) are all in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sonoran.calibrate.traces import Acceptance, Trace
from sonoran.drafting.fan_out import measured
from sonoran.errors import PlanError
from sonoran.simulate.behaviour import Behaviour

STARTS = 8
"""Rounds begin at this many different offsets of each text; their average varies less than one walk."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Counts of rounds by what was verified: after a hit (primary) and after a miss (backup)."""

    lengths_hit: tuple[int, ...]  # rounds by accepted tokens 0..K
    lengths_miss: tuple[int, ...]
    hits_after_primary: int
    hits_after_backup: int

    @property
    def rounds(self) -> int:
        """Return all rounds."""
        return sum(self.lengths_hit) + sum(self.lengths_miss)

    @property
    def tokens_per_round(self) -> float:
        """Return tokens per round, bonus included."""
        pairs = zip(self.lengths_hit, self.lengths_miss, strict=True)
        return sum((k + 1) * (a + b) for k, (a, b) in enumerate(pairs)) / self.rounds

    @property
    def tokens_hit(self) -> float:
        """Return E_hit; that of all rounds when nothing was hit."""
        return _mean(self.lengths_hit) or self.tokens_per_round

    @property
    def tokens_miss(self) -> float:
        """Return E_miss; that of all rounds when nothing was missed."""
        return _mean(self.lengths_miss) or self.tokens_per_round

    @property
    def after_primary(self) -> float:
        """Return p_hit given a verified cached speculation; the other one when there was none."""
        n = sum(self.lengths_hit)
        return self.hits_after_primary / n if n else self.after_backup

    @property
    def after_backup(self) -> float:
        """Return p_hit given a verified backup; 1 when no round missed."""
        n = sum(self.lengths_miss)
        return self.hits_after_backup / n if n else 1.0


def replay_lengths(acceptance: Acceptance, num_speculative_tokens: int) -> tuple[int, ...]:
    """Return the rounds of SD by accepted tokens 0..K. Raises PlanError when all texts are too short."""
    counts = [0] * (num_speculative_tokens + 1)
    for trace, start in _walks(acceptance, num_speculative_tokens):
        at, end = start, len(trace.rejected) - num_speculative_tokens
        while at < end:
            accepted = _run(trace, at, num_speculative_tokens)
            counts[accepted] += 1
            at += accepted + 1
    return tuple(counts)


def replay_ssd(
    acceptance: Acceptance,
    fan_out: Sequence[int],
    fan_out_backup: Sequence[int] | None = None,
    *,
    backup: str = "draft",
) -> Replay:
    """Run SSD with lists F_0..F_K over the texts; ``backup`` is draft (the same tokens, later) or none (K = 0).

    Raises PlanError when all texts are too short for K.
    """
    if backup not in ("draft", "none"):
        raise PlanError(f"a replay knows the backups draft and none, got {backup!r}")
    k = len(fan_out) - 1
    lists = (fan_out if fan_out_backup is None else fan_out_backup, fan_out)
    whole_budget = sum(lists[0])
    lengths = ([0] * (k + 1), [0] * (k + 1))
    hits = [0, 0]
    for trace, start in _walks(acceptance, k):
        at, end, origin = start, len(trace.rejected) - k, 1
        while at < end:
            length = k if origin or backup == "draft" else 0
            accepted = _run(trace, at, length)
            bonus = at + accepted
            rank = trace.free[bonus] if accepted == length else trace.rejected[bonus]
            guesses = lists[origin][accepted] if length else whole_budget
            lengths[origin][accepted] += 1
            hit = int(rank <= guesses)
            hits[origin] += hit
            at, origin = bonus + 1, hit
    return Replay(tuple(lengths[1]), tuple(lengths[0]), hits[1], hits[0])


def best_fan_out(acceptance: Acceptance, num_speculative_tokens: int, budget: int) -> tuple[int, ...]:
    """Return the measured fan-out (Theorem 18) for the traces. Raises PlanError, ConfigError."""
    counts = replay_lengths(acceptance, num_speculative_tokens)
    lengths = [count / sum(counts) for count in counts]
    cdfs = [acceptance.rejected_cdf] * num_speculative_tokens + [acceptance.free_cdf]
    return tuple(measured(budget, lengths, cdfs))


def behaviour_of(
    acceptance: Acceptance, num_speculative_tokens: int, replay: Replay | None = None
) -> Behaviour:
    """Return laws for the event simulation: acceptance by position, by origin if a replay of SSD is given."""
    average = _rates(replay_lengths(acceptance, num_speculative_tokens))
    rejected, free = acceptance.rejected_cdf, acceptance.free_cdf
    if replay is None or min(sum(replay.lengths_hit), sum(replay.lengths_miss)) < 1:
        return Behaviour(average, rejected, free, synchronous=average)
    missed = replay.lengths_miss
    after_miss = _rates(missed) if sum(missed[1:]) else average
    return Behaviour(_rates(replay.lengths_hit), rejected, free, after_miss=after_miss, synchronous=average)


def _rates(lengths: Sequence[int]) -> tuple[float, ...]:
    """Return acceptance by position from rounds by accepted tokens; unreached positions repeat the one before."""
    rates: list[float] = []
    reached = sum(lengths)
    for stopped in lengths[:-1]:
        rates.append(1.0 - stopped / reached if reached else (rates[-1] if rates else 0.0))
        reached -= stopped
    return tuple(rates) or (0.0,)


def _walks(acceptance: Acceptance, num_speculative_tokens: int) -> Iterator[tuple[Trace, int]]:
    found = False
    for trace in acceptance.traces:
        room = len(trace.rejected) - num_speculative_tokens
        for start in range(min(STARTS, room)):
            found = True
            yield trace, start
    if not found:
        raise PlanError(
            f"every calibration text is shorter than {num_speculative_tokens + 1} positions; use longer ones"
        )


def _run(trace: Trace, start: int, limit: int) -> int:
    for accepted in range(limit):
        if trace.rejected[start + accepted]:
            return accepted
    return limit


def _mean(lengths: Sequence[int]) -> float | None:
    n = sum(lengths)
    return sum((k + 1) * count for k, count in enumerate(lengths)) / n if n else None
