"""Rounds of a given K and fan-out over texts read along: what would have been accepted and hit, no chance involved.

Correlations that independent rounds miss (hard text follows hard text, misses come in runs) are all in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sonoran.errors import PlanError
from sonoran.planning.profile.acceptance import Acceptance, TextRanks
from sonoran.planning.rounds.behaviour import Behaviour
from sonoran.ssd.fan_out import measured
from sonoran.theory.speedup import tokens_from_lengths

IsHit = Callable[[TextRanks, int, int, int], bool]
"""Whether the outcome of a round was guessed: text, first position, accepted and proposed tokens."""

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
        return tokens_from_lengths([a + b for a, b in zip(self.lengths_hit, self.lengths_miss, strict=True)])

    @property
    def tokens_hit(self) -> float:
        """Return E_hit; that of all rounds when nothing was hit."""
        return tokens_from_lengths(self.lengths_hit) if any(self.lengths_hit) else self.tokens_per_round

    @property
    def tokens_miss(self) -> float:
        """Return E_miss; that of all rounds when nothing was missed."""
        return tokens_from_lengths(self.lengths_miss) if any(self.lengths_miss) else self.tokens_per_round

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
    for text, start in _walks(acceptance, num_speculative_tokens):
        at, end = start, len(text.rejected) - num_speculative_tokens
        while at < end:
            accepted = _run(text, at, num_speculative_tokens)
            counts[accepted] += 1
            at += accepted + 1
    return tuple(counts)


def replay_ssd(
    acceptance: Acceptance,
    fan_out: Sequence[int],
    *,
    backup: str = "draft",
) -> Replay:
    """Run SSD with the list F_0..F_K over the texts; ``backup`` is draft (the same tokens, later) or none (K = 0).

    Raises PlanError when all texts are too short for K.
    """

    def is_hit(text: TextRanks, at: int, accepted: int, length: int) -> bool:
        rank = text.free[at + accepted] if accepted == length else text.rejected[at + accepted]
        return rank <= (fan_out[accepted] if length else sum(fan_out))

    return _replay(acceptance, len(fan_out) - 1, backup, is_hit)


def replay_confidence(
    acceptance: Acceptance, num_speculative_tokens: int, budget: int, *, backup: str = "draft"
) -> Replay:
    """Run SSD with the ``budget`` likeliest outcomes of every round by the draft's confidence.

    What the draft would think after a token that was rejected is not known; what it thinks at the same place
    of the text stands in. Raises PlanError when all texts are too short for K, or chances are unknown.
    """
    if not acceptance.has_chances:
        raise PlanError("the profile does not have the draft's confidence; calibrate again")

    k = num_speculative_tokens
    places = {(id(t), n): outcome_ranks(t, n) for t in acceptance.texts if len(t.free) > k for n in (0, k)}

    def is_hit(text: TextRanks, at: int, accepted: int, length: int) -> bool:
        return places[id(text), length][at] <= budget

    return _replay(acceptance, k, backup, is_hit)


def replay_budget(
    acceptance: Acceptance, num_speculative_tokens: int, budget: int, *, backup: str = "draft"
) -> Replay:
    """Run SSD as the engine does by default: by confidence, or by the average where that is all that is known."""
    if acceptance.has_chances:
        return replay_confidence(acceptance, num_speculative_tokens, budget, backup=backup)
    fan_out = best_fan_out(acceptance, num_speculative_tokens, budget)
    return replay_ssd(acceptance, fan_out, backup=backup)


@lru_cache(maxsize=4096)  # the same for every budget, backup, placement and batch
def outcome_ranks(text: TextRanks, length: int) -> tuple[float, ...]:
    """Return, for a round of ``length`` tokens from each position, the place of its outcome among all guesses by
    confidence, from 1; infinite if it is no candidate.

    "All accepted, then the best candidate" is the first guess, whatever its chance.
    """
    return tuple(_outcome_rank(text, at, length) for at in range(len(text.free) - length))


def _outcome_rank(text: TextRanks, at: int, length: int) -> float:
    accepted = _run(text, at, length)
    rank = text.free[at + accepted] if accepted == length else text.rejected[at + accepted]
    alive, found = 1.0, []
    for k in range(length):
        stays, *others = text.chances[at + k]
        found.append([alive * chance for chance in others])
        alive *= stays
    found.append([alive * chance for chance in text.free_chances[at + length]])
    if rank > len(found[accepted]):
        return math.inf
    if (accepted, rank) == (length, 1):
        return 1
    own = found[accepted][rank - 1]
    ahead = sum(chance > own for row in found for chance in row)
    return 1 + ahead + (found[-1][0] <= own)


def _replay(acceptance: Acceptance, k: int, backup: str, is_hit: IsHit) -> Replay:
    if backup not in ("draft", "none"):
        raise PlanError(f"a replay knows the backups draft and none, got {backup!r}")
    lengths = ([0] * (k + 1), [0] * (k + 1))
    hits = [0, 0]
    for text, start in _walks(acceptance, k):
        at, end, origin = start, len(text.rejected) - k, 1
        while at < end:
            length = k if origin or backup == "draft" else 0
            accepted = _run(text, at, length)
            lengths[origin][accepted] += 1
            hit = int(is_hit(text, at, accepted, length))
            hits[origin] += hit
            at, origin = at + accepted + 1, hit
    return Replay(tuple(lengths[1]), tuple(lengths[0]), hits[1], hits[0])


def best_fan_out(acceptance: Acceptance, num_speculative_tokens: int, budget: int) -> tuple[int, ...]:
    """Return the measured fan-out (Theorem 18) for the texts. Raises PlanError, ConfigError."""
    counts = replay_lengths(acceptance, num_speculative_tokens)
    lengths = [count / sum(counts) for count in counts]
    cdfs = [acceptance.rejected_cdf] * num_speculative_tokens + [acceptance.free_cdf]
    return tuple(measured(budget, lengths, cdfs))


def behaviour_of(
    acceptance: Acceptance, num_speculative_tokens: int, replay: Replay | None = None
) -> Behaviour:
    """Return what the event simulation needs: acceptance by position, by origin if a replay of SSD is given."""
    average = _rates(replay_lengths(acceptance, num_speculative_tokens))
    rejected, free = acceptance.rejected_cdf, acceptance.free_cdf
    hits = None if replay is None else (replay.after_primary, replay.after_backup)
    if replay is None or min(sum(replay.lengths_hit), sum(replay.lengths_miss)) < 1:
        return Behaviour(average, rejected, free, synchronous=average, hits=hits)
    missed = replay.lengths_miss
    after_miss = _rates(missed) if sum(missed[1:]) else average
    return Behaviour(
        _rates(replay.lengths_hit), rejected, free, after_miss=after_miss, synchronous=average, hits=hits
    )


def _rates(lengths: Sequence[int]) -> tuple[float, ...]:
    """Return acceptance by position from rounds by accepted tokens; unreached positions repeat the one before."""
    rates: list[float] = []
    reached = sum(lengths)
    for stopped in lengths[:-1]:
        rates.append(1.0 - stopped / reached if reached else (rates[-1] if rates else 0.0))
        reached -= stopped
    return tuple(rates) or (0.0,)


def _walks(acceptance: Acceptance, num_speculative_tokens: int) -> Iterator[tuple[TextRanks, int]]:
    found = False
    for text in acceptance.texts:
        room = len(text.rejected) - num_speculative_tokens
        for start in range(min(STARTS, room)):
            found = True
            yield text, start
    if not found:
        raise PlanError(
            f"every calibration text is shorter than {num_speculative_tokens + 1} positions; use longer ones"
        )


def _run(text: TextRanks, start: int, limit: int) -> int:
    for accepted in range(limit):
        if text.rejected[start + accepted]:
            return accepted
    return limit
