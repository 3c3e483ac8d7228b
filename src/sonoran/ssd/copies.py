"""Copies beside a draft: when what followed a repeat of the text is a better speculation than a draft model's.

Every token of an output tells whether a copy would have had it, so the chance of a copy by the length of its match is
counted at no cost, whatever was proposed. Known from SuffixDecoding (arXiv 2411.04975) is copying by suffix; that a copy
which broke goes on beyond the place where it broke, as in an edit, is ours.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sonoran.ssd.suffixes import SuffixIndex
from sonoran.theory.latency import RunningLatency

Pass = Callable[[int], float]
"""Rows of a target pass -> its ms."""

LEAST_CHANCE = 0.05
"""A copy ends where it is less likely than this to be accepted whole, however cheap rows are."""

FAITHFUL = 8
"""Tokens that a copy must have followed its source for it to be taken up again after a break."""

_WINDOW = 12  # tokens around a break among which its copy may go on
_PATIENCE = 12  # tokens after a break, before it is given up
_BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # lengths of a match from which a class begins
_CLASSES = len(_BOUNDS) + 1
_MEMORY = 0.998  # what a count keeps per later one of its class: a memory of 500 tokens
_STRENGTH = 8.0  # tokens that a prior is worth
_OWN_STRENGTH = 6.0  # ... and what all sequences together say of one of them
_UNSEEN = 0.5  # share of proportion at which passes are taken to grow beyond the largest that was timed


@dataclass(frozen=True, slots=True)
class Source:
    """Where a copy would begin, and its evidence: tokens that match before it. ``resumed`` after a break."""

    start: int
    evidence: int
    resumed: bool = False


class CopyRates:
    """Chance that the next token of a copy is right, by evidence: counts that fade, over a prior or over other rates."""

    def __init__(self, above: CopyRates | None = None) -> None:
        self._above = above
        self._seen = [[0.0] * _CLASSES, [0.0] * _CLASSES]
        self._right = [[0.0] * _CLASSES, [0.0] * _CLASSES]

    def observe(self, source: Source, right: bool) -> None:
        """Count a token that a copy would have had right, or not; also in the rates above."""
        column = bisect.bisect_right(_BOUNDS, source.evidence)
        seen, hits = self._seen[source.resumed], self._right[source.resumed]
        seen[column] = _MEMORY * seen[column] + 1.0
        hits[column] = _MEMORY * hits[column] + right
        if self._above is not None:
            self._above.observe(source, right)

    def chance(self, evidence: int, resumed: bool) -> float:
        """Return the chance of the next token."""
        column = bisect.bisect_right(_BOUNDS, evidence)
        seen, right = self._seen[resumed][column], self._right[resumed][column]
        if self._above is not None:
            return (right + _OWN_STRENGTH * self._above.chance(evidence, resumed)) / (seen + _OWN_STRENGTH)
        guess = (evidence + 2.0) / (evidence + 5.0) if resumed else evidence / (evidence + 3.0)
        return (right + _STRENGTH * guess) / (seen + _STRENGTH)

    def chances(self, source: Source, limit: int) -> list[float]:
        """Return the chance that the first 1, 2, .. ``limit`` tokens are all right; it ends below LEAST_CHANCE."""
        found, whole = list[float](), 1.0
        for i in range(limit):
            whole *= self.chance(source.evidence + i, source.resumed)
            if whole < LEAST_CHANCE:
                break
            found.append(whole)
        return found

    def as_dict(self) -> dict[str, float]:
        """Return the share that was right by the least evidence of each class that was seen, for reports."""
        return {
            f"{name}{(0, *_BOUNDS)[column]}": right / seen
            for name, all_seen, all_right in zip(("", "resumed "), self._seen, self._right, strict=True)
            for column, (seen, right) in enumerate(zip(all_seen, all_right, strict=True))
            if seen
        }


class CopySource:
    """One sequence's text as something to copy from: its index, its rates, and where a copy broke."""

    def __init__(self, rates: CopyRates, prompt_length: int) -> None:
        self.index = SuffixIndex()
        self.rates = CopyRates(rates)
        self._prompt_length = prompt_length
        self._sources: list[Source] = []
        self._broken = -1  # position of the token that was not copied
        self._since = 0  # tokens since

    def follow(self, tokens: Sequence[int]) -> None:
        """Read on to the end of ``tokens``, which continue what is known. A prompt's own repeats count for nothing."""
        known = len(self.index)
        start = max(known, min(len(tokens), self._prompt_length))
        self.index.extend(tokens[known:start])
        if start > known:
            self._sources = self._find()
        for token in tokens[start:]:
            self._compare(token)
            self.index.extend((token,))
            self._sources = self._find()

    def best(self) -> Source | None:
        """Return the source whose next token is likeliest; None without any."""
        return max(
            self._sources, key=lambda s: (self.rates.chance(s.evidence, s.resumed), s.evidence), default=None
        )

    def _compare(self, token: int) -> None:
        best, text = self.best(), self.index.tokens
        for source in self._sources:
            self.rates.observe(source, text[source.start] == token)
        if self._broken >= 0:
            self._since += 1
            if self._since > _PATIENCE:
                self._broken = -1
        if best is None or text[best.start] == token or (not best.resumed and best.evidence < FAITHFUL):
            return
        self._broken, self._since = (
            (best.start, 1) if not best.resumed or best.evidence else (self._broken, self._since)
        )

    def _find(self) -> list[Source]:
        found, match = [], self.index.find()
        if match is not None:
            found.append(Source(match.start, match.length))
        resumed = self._resumed()
        if resumed is not None:
            found.append(resumed)
        return found

    def _resumed(self) -> Source | None:
        """Return where a copy that broke goes on: where most of the tokens since are found again, near the break.

        Without any, one token is taken to stand for another.
        """
        if self._broken < 0:
            return None
        text, broken, since = self.index.tokens, self._broken, self._since
        last, aligned = len(text) - 1, broken + since - 1
        best, most, distance = -1, 0, math.inf
        for at in range(broken, min(broken + since + _WINDOW, last - since + 1)):
            length = 0
            while length < since and at - length >= broken and text[at - length] == text[last - length]:
                length += 1
            if length > most or (length == most > 0 and abs(at - aligned) < distance):
                best, most, distance = at, length, abs(at - aligned)
        if most:
            return Source(best + 1, most, resumed=True)
        return Source(broken + 1, 0, resumed=True) if since == 1 and broken + 1 <= last else None


@dataclass(slots=True)
class Rival:
    """What speculations that were not copied gave, on average of the last rounds: of one sequence, in ms of a round."""

    tokens: float = 0.0
    rows: float = 0.0
    waited_ms: float = 0.0  # for the draft, by the whole batch

    def observe(self, tokens: float, rows: float, waited_ms: float) -> None:
        """Count a round of one sequence."""
        weight = 0.1 if self.tokens else 1.0
        self.tokens += weight * (tokens - self.tokens)
        self.rows += weight * (rows - self.rows)
        self.waited_ms += weight * (waited_ms - self.waited_ms)


@dataclass(slots=True)
class CopyPolicy:
    """Chooses copies by expected tokens per second, from chances and times as they were measured.

    The rate of the last rounds is what a millisecond is worth; a copy's value is its expected tokens less the worth of
    the rows that it adds to the target's pass, and the rival's is so too, less the worth of waiting for it.
    """

    limit: int
    rates: CopyRates = field(default_factory=CopyRates)
    latency: RunningLatency = field(default_factory=RunningLatency)
    rival: Rival = field(default_factory=Rival)
    tokens: float = 0.0  # and ms of the last rounds, fading
    ms: float = 0.0
    copies: int = 0

    def observe_round(self, tokens: int, ms: float) -> None:
        """Count a whole round of a batch: tokens emitted, and how long it took with all waiting."""
        self.tokens = 0.9 * self.tokens + tokens
        self.ms = 0.9 * self.ms + ms

    def pass_ms(self, rows: float) -> float:
        """Return the time of a target pass; beyond the largest seen it grows by half of proportion until it is tried."""
        largest = self.latency.largest
        if rows <= largest:
            return self.latency(round(rows))
        return self.latency(largest) * (1.0 + _UNSEEN * (rows / largest - 1.0)) if largest else 0.0

    def choose(
        self, text: CopySource, limit: int, batch: int, expected: float | None = None
    ) -> tuple[int, int]:
        """Return (where the copy begins, how many tokens of it); 0 tokens where the rival is the better choice.

        ``limit`` is the most that may be copied, ``batch`` the sequences of the round, and ``expected`` the tokens that
        a draft which is there already gives (default: what the rival gave, and its wait).
        """
        source = text.best()
        if source is None:
            return 0, 0
        worth = self.tokens / self.ms if self.ms > 0.0 else 0.0
        base = self.pass_ms(batch)
        best, length, value = 0.0, 0, 1.0
        for n, chance in enumerate(text.rates.chances(source, min(limit, self.limit)), start=1):
            value += chance
            net = value - worth * (self.pass_ms(batch + n) - base)
            if net > best:
                best, length = net, n
        rows = batch + self.rival.rows
        wait = 0.0 if expected is not None else self.rival.waited_ms
        rival = (self.rival.tokens if expected is None else expected) - worth * (
            self.pass_ms(rows) - base + wait
        )
        if not length or best <= max(rival, 1.0):
            return 0, 0
        self.copies += 1
        return source.start, length
