"""Rounds as they happen: per row hits and misses by origin, early answers and top-up, unequal rows, waiting, messages.

Where closed forms average (Theorem 7, Corollary 16), this keeps two clocks, the target's and the draft's.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sonoran.errors import PlanError
from sonoran.planning.rounds.behaviour import Behaviour
from sonoran.planning.rounds.costs import Costs
from sonoran.planning.rounds.formulas import autoregressive
from sonoran.planning.rounds.plan import RoundAverages, RoundPlan
from sonoran.ssd.backup import Pace, top_up_goals
from sonoran.ssd.fan_out import resize
from sonoran.theory.distributions import pooled_rate
from sonoran.theory.speedup import tokens_from_lengths
from sonoran.types import Origin

WARMUP_ROUNDS = 20


def simulate(
    plan: RoundPlan, costs: Costs, behaviour: Behaviour, *, rounds: int = 2000, seed: int = 0
) -> RoundAverages:
    """Run ``rounds`` rounds and return their averages; the same arguments give the same result.

    Random numbers are stratified over the rounds, so that averages converge much faster than independent ones
    would. Raises PlanError.
    """
    if rounds < 1:
        raise PlanError(f"rounds must be at least 1, got {rounds!r}; nearest valid value: 1")
    if plan.mode == "ar":
        return replace(autoregressive(plan, costs), rounds=rounds)
    draws = _Draws.make(rounds + WARMUP_ROUNDS, plan.batch, seed)
    if plan.mode == "sd":
        return _synchronous(plan, costs, behaviour, rounds, draws)
    return _SpeculativeRun(plan, costs, behaviour, draws).run(rounds)


@dataclass(frozen=True, slots=True)
class _Draws:
    lengths: NDArray[np.float64]  # [rounds, batch], uniform
    ranks: NDArray[np.float64]

    @staticmethod
    def make(rounds: int, batch: int, seed: int) -> _Draws:
        random = np.random.default_rng(seed)

        def stratified() -> NDArray[np.float64]:
            columns = [(random.permutation(rounds) + random.random(rounds)) / rounds for _ in range(batch)]
            return np.stack(columns, axis=1)

        return _Draws(stratified(), stratified())


def _synchronous(
    plan: RoundPlan, costs: Costs, behaviour: Behaviour, rounds: int, draws: _Draws
) -> RoundAverages:
    k, batch = plan.num_speculative_tokens, plan.batch
    lengths = behaviour.synchronous_lengths(k)
    cumulative = np.cumsum(lengths)[:-1]
    accepted = np.searchsorted(cumulative, draws.lengths[WARMUP_ROUNDS:], side="right")
    rows = batch * (k + 1)
    wait, verify = costs.drafting_ms(k, batch, lengths[-1]), costs.verify_ms(rows)
    mean = float(accepted.mean())
    total = wait + verify + costs.after_pass_ms(batch * (1.0 + mean))
    return RoundAverages(
        "sd", 1e3 * batch * (1.0 + mean) / total, 1.0 + mean, total, verify, wait, rounds,
        acceptance_rate=mean / k,
    )  # fmt: skip


@dataclass(slots=True)
class _Row:
    """What is being verified for one sequence."""

    origin: Origin
    length: int


class _SpeculativeRun:
    """SSD: the state of both sides between two rounds. Times are absolute ms."""

    def __init__(self, plan: RoundPlan, costs: Costs, behaviour: Behaviour, draws: _Draws) -> None:
        self.plan, self.costs, self.behaviour, self.draws = plan, costs, behaviour, draws
        self.rows = [_Row("draft", plan.num_speculative_tokens) for _ in range(plan.batch)]
        self.now = 0.0  # the target has the outcomes of the last verification
        self.passes: list[float] = []  # ends of the draft's passes of this round, trunk pass first
        self.tally = _Tally()
        self._asked = 0.0
        self._pace = Pace()
        self._acceptance = pooled_rate(behaviour.rates("primary"), plan.num_speculative_tokens)
        self._lengths: dict[tuple[Origin, int], list[float]] = {}
        self._means: dict[tuple[Origin, int], float] = {}

    def run(self, rounds: int) -> RoundAverages:
        self._build(0.0)
        self._verify(0.0)
        for turn in range(rounds + WARMUP_ROUNDS):
            if turn == WARMUP_ROUNDS:
                self.tally = _Tally()
            self._round(turn)
        return self.tally.result(self.plan.batch)

    def _round(self, turn: int) -> None:
        """Outcomes are known, are sent and answered; the target verifies while the draft works."""
        plan, costs, begin = self.plan, self.costs, self.now
        half = 0.5 * costs.message_ms
        looking, steps = self._interrupted(begin + half)
        before, missing = self.tally.tokens, 0
        for index, row in enumerate(self.rows):
            missing += self._settle(row, turn, index, steps)
        if turn:
            self._pace.observe(self.tally.tokens - before, looking - self._asked)
        self._asked = looking
        reply = looking + costs.service_ms + self._fill_in(missing if plan.backup == "draft" else 0)
        arrived = reply + half
        self._build(reply)
        took = self._verify(arrived)
        self.tally.rounds += 1
        self.tally.elapsed += self.now - begin
        self.tally.wait += arrived - begin
        self.tally.verify += took
        self.tally.draft += self.passes[-1] - reply

    def _interrupted(self, arrival: float) -> tuple[float, int]:
        """Return when the draft reads a message that arrives then, and the tree steps it has finished."""
        last = self.passes[-1]
        if not self.plan.early_answers or arrival >= last:
            return max(arrival, last), len(self.passes) - 1
        at = bisect.bisect_left(self.passes, arrival)  # the pass that runs is finished first
        return self.passes[at], at

    def _settle(self, row: _Row, turn: int, index: int, steps: int) -> bool:
        """Draw one row's outcome, look it up and give it its next speculation; return whether it missed."""
        plan, tally = self.plan, self.tally
        after_primary = row.origin == "primary"
        cumulative = self._cumulative(row.origin, row.length)
        accepted = min(bisect.bisect_right(cumulative, self.draws.lengths[turn, index]), row.length)
        hit = bool(self.draws.ranks[turn, index] < self._chance(row, accepted)) and steps > 0
        tally.tokens += accepted + 1
        tally.accepted += accepted
        tally.proposed += row.length
        tally.emitted[after_primary] += accepted + 1
        tally.verified[after_primary] += 1
        tally.hits[after_primary] += hit
        if hit:
            tally.cut += steps < plan.num_speculative_tokens
            row.origin, row.length = "primary", steps
            return False
        row.origin = plan.backup
        row.length = 0 if plan.backup == "none" else plan.num_speculative_tokens
        return True

    def _chance(self, row: _Row, accepted: int) -> float:
        """Return the probability that an outcome with that many accepted tokens was guessed."""
        if self.behaviour.hits is not None:
            return self.behaviour.hit_rate(row.origin, ())
        complete = accepted == row.length
        cdf = self.behaviour.accepted_cdf if complete else self.behaviour.rejected_cdf
        return float(cdf[min(self._fan_out(row)[accepted], len(cdf) - 1)])

    def _fill_in(self, missing: int) -> float:
        """Draft for rows that missed, and on what was cut short if that pays or the batch waits anyway; return ms."""
        costs, k = self.costs, self.plan.num_speculative_tokens
        cut = [row for row in self.rows if row.origin == "primary" and row.length < k]
        drafted = [row.length for row in cut]
        goals = [k] * len(cut)
        if not missing:
            goals = top_up_goals(drafted, goals, self._acceptance, self._pace.rate, costs.draft_ms)
        needs = [k] * missing + [goal - length for goal, length in zip(goals, drafted, strict=True)]
        for row, goal in zip(cut, goals, strict=True):
            row.length = goal
        return sum(costs.draft_ms(sum(n > i for n in needs)) for i in range(max(needs, default=0)))

    def _build(self, begin: float) -> None:
        """The draft's work from ``begin`` on: the trunk pass, then one pass per token over all branches."""
        branches = sum(sum(self._fan_out(row)) for row in self.rows)
        end = begin + self.costs.trunk_ms(sum(row.length + 1 for row in self.rows), len(self.rows))
        step = self.costs.tree_ms(branches)
        self.passes = [end + i * step for i in range(self.plan.num_speculative_tokens + 1)]

    def _verify(self, begin: float) -> float:
        """Run the target from ``begin``; it is undisturbed once the draft has finished. Return the pass's ms."""
        costs, rows = self.costs, sum(row.length + 1 for row in self.rows)
        beside, alone = costs.verify_ms(rows, beside=True), costs.verify_ms(rows)
        overlap = max(0.0, self.passes[-1] - begin)
        took = beside if overlap >= beside else overlap + (1.0 - overlap / beside) * alone
        self.now = begin + took + costs.after_pass_ms(sum(self._tokens(row) for row in self.rows))
        return took

    def _tokens(self, row: _Row) -> float:
        """Mean tokens of verifying a row: its outcome is drawn only when it is sent."""
        key = (row.origin, row.length)
        if key not in self._means:
            self._means[key] = tokens_from_lengths(self.behaviour.lengths(row.origin, row.length))
        return self._means[key]

    def _fan_out(self, row: _Row) -> list[int]:
        chosen = self.plan.fan_out
        if row.length == len(chosen) - 1:
            return list(chosen)
        # Without a speculation there is one outcome to guess about, and the whole budget is for it.
        return [sum(chosen)] if row.length == 0 else resize(chosen, row.length)

    def _cumulative(self, origin: Origin, length: int) -> list[float]:
        """Probabilities of at most 0, 1, ... ``length`` accepted tokens."""
        key = (origin, length)
        if key not in self._lengths:
            self._lengths[key] = np.cumsum(self.behaviour.lengths(origin, length)).tolist()
        return self._lengths[key]


def _by_origin() -> dict[bool, int]:
    return {True: 0, False: 0}


@dataclass(slots=True)
class _Tally:
    """Sums in tokens and ms; dicts are by "a cached speculation was verified" (primary) or not (backup)."""

    rounds: int = 0
    tokens: int = 0
    accepted: int = 0
    proposed: int = 0
    elapsed: float = 0.0
    verify: float = 0.0
    wait: float = 0.0
    draft: float = 0.0
    cut: int = 0
    hits: dict[bool, int] = field(default_factory=_by_origin)
    emitted: dict[bool, int] = field(default_factory=_by_origin)
    verified: dict[bool, int] = field(default_factory=_by_origin)

    def result(self, batch: int) -> RoundAverages:
        """Return the averages of a run of SSD with ``batch`` rows."""
        n, hits = self.rounds, sum(self.hits.values())
        return RoundAverages(
            "ssd",
            tokens_per_s=1e3 * self.tokens / self.elapsed,
            tokens_per_round=self.tokens / (n * batch),
            round_ms=self.elapsed / n,
            verify_ms=self.verify / n,
            wait_ms=self.wait / n,
            rounds=n,
            acceptance_rate=self.accepted / self.proposed if self.proposed else None,
            hit_rate=hits / (n * batch),
            hit_rate_after_primary=_share(self.hits[True], self.verified[True]),
            hit_rate_after_backup=_share(self.hits[False], self.verified[False]),
            tokens_hit=_share(self.emitted[True], self.verified[True]),
            tokens_miss=_share(self.emitted[False], self.verified[False]),
            cut_rate=_share(self.cut, hits),
            draft_round_ms=self.draft / n,
        )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
