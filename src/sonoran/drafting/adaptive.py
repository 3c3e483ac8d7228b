"""A drafter around a drafter: a policy decides K anew for each round, down to none."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sonoran.engine.drafter import CachingDrafter, Drafter, DraftRequest, DraftRound
from sonoran.engine.trace import Span
from sonoran.errors import PlanError
from sonoran.planning.profile.passes import Clock
from sonoran.planning.profile.round_times import Rounds
from sonoran.planning.rounds.behaviour import stretch
from sonoran.sampling.proposals import EMPTY, Speculation
from sonoran.theory.distributions import length_distribution, pooled_rate
from sonoran.theory.speedup import tokens_from_lengths

SWITCH_GAIN = 0.05
"""A change of K must promise this much."""

PATIENCE = 4
"""... for that many rounds in a row. Leaving what is slower than AR takes one round fewer than this."""

FIRST_PROBE = 64
PROBE_GROWTH = 4
LAST_PROBE = 4096
PROBE_ROUNDS = 4
PROBE_K = 2

CHECK_DRIFT = 1.25
"""When rounds have become that much slower or faster, two rounds of AR tell whether AR has too."""

CHECK_ROUNDS = 2
CHECK_PAUSE = 32
TYPICAL_K = 4
"""Draft tokens over which the cost of one more is averaged."""

_CLIP = 4.0  # a first round counts as at most that much slower than predicted,
_OUTLIER = 1.5  # and a later one as that much slower than those before it
_MEMORY = 0.97  # what an outcome is worth after the next
_PRIOR = 8.0  # tokens that the profile's acceptance counts for
_PRIOR_TOKENS = 16.0  # what the profile's speed counts for
_SPEED_MEMORY = 0.95  # of rounds in the running speed
_STALE = 0.25  # what the running speed still counts for when it is probed again


@dataclass(frozen=True, slots=True)
class Drafted:
    """Tokens of a sequence in a round, on average over a batch: drafted, and emitted with the bonus token."""

    drafted: float
    emitted: float


@dataclass(slots=True)
class AutoPolicy:
    """Chooses K for each round; told what became of the rounds. ``k`` is in force, 0 is AR.

    It begins with what is best for a single sequence. Acceptance is a running rate, which bends the profile's rates
    by position; rounds of either kind, with and without a speculation, have a running ratio of measured to predicted
    time. AR is left for a short probe after 64 rounds, then 256, 1024, 4096, because without a speculation nothing is
    learnt about acceptance. When rounds with a speculation take another time than they did, two rounds of AR show
    whether the machine or the draft did it.

    A draft that ``stops`` ends every speculation below ``least_chance``, and K only bounds it. Then the choice is between
    k_max and AR, by the speed that rounds with a speculation had.
    """

    rounds: Rounds
    k_max: int
    stops: bool = False
    k: int = field(default=0, init=False)
    switches: int = field(default=0, init=False)
    probes: int = field(default=0, init=False)
    _base: float = field(init=False)  # acceptance rate of the profile
    _passed: float = field(init=False)  # tokens accepted and looked at, fading
    _reached: float = field(init=False)
    _slow: dict[bool, float] = field(default_factory=dict, init=False)  # measured / predicted ms, by K > 0
    _rival: int = field(default=0, init=False)  # K that has been better for _votes rounds
    _votes: int = field(default=0, init=False)
    _plain_rounds: int = field(default=0, init=False)
    _next_probe: int = field(default=FIRST_PROBE, init=False)
    _probing: int = field(default=0, init=False)
    _stretch: tuple[bool, int] = field(
        default=(False, 0), init=False
    )  # kind of the last rounds, and how many
    _checked: float = field(default=1.0, init=False)  # _slow[True] when AR was last looked at
    _checking: int = field(default=0, init=False)
    _pause: int = field(default=0, init=False)
    # Tokens of a sequence in the last rounds with a speculation, and what the best fixed K promised for their time.
    _emitted: float = field(default=_PRIOR_TOKENS, init=False)
    _promised: float = field(default=_PRIOR_TOKENS, init=False)
    _best_fixed: dict[int, float] = field(default_factory=dict, init=False)  # by batch size of the model

    def __post_init__(self) -> None:
        if self.k_max < 1:
            raise PlanError(f"a policy needs k_max >= 1, got {self.k_max!r}")
        self._base = pooled_rate(self.rounds.rates, self.k_max)
        self._reached = _PRIOR
        self._passed = _PRIOR * self._base
        speeds = self.speeds(1)
        best = max(range(len(speeds)), key=speeds.__getitem__)
        self.k = best if speeds[best] >= (1.0 + SWITCH_GAIN) * speeds[0] else 0

    @property
    def acceptance(self) -> float:
        """Return the running acceptance rate."""
        return self._passed / self._reached

    def observe_outcome(self, proposed: int, accepted: int) -> None:
        """Count a verification; one of nothing says nothing."""
        if proposed < 1:
            return
        self._passed = _MEMORY * self._passed + accepted
        self._reached = _MEMORY * self._reached + min(proposed, accepted + 1)

    def observe_time(self, k: int, batch: int, ms: float, tokens: Drafted | None = None) -> None:
        """Count the time of a whole round with that K and batch; ``tokens`` are needed of a draft that stops."""
        length = k if tokens is None or not self.stops else min(k, max(1, round(tokens.drafted)))
        predicted = self.rounds.model(batch).round_ms[min(length, self.k_max)]
        if not (math.isfinite(predicted) and ms > 0.0):
            return
        kind, count = self._stretch
        count = count + 1 if kind == (k > 0) else 0
        self._stretch = (k > 0, count)
        # What was known from before the other kind of round may be out of date: the first rounds weigh more.
        known = self._slow.get(k > 0)
        limit, centre = (_CLIP, 1.0) if known is None or count == 0 else (_OUTLIER, known)
        ratio = min(limit * centre, max(centre / limit, ms / predicted))
        known = ratio if known is None else known
        self._slow[k > 0] = known + max(0.15, 1.0 / (count + 2)) * (ratio - known)
        if k > 0 and tokens is not None:
            self._emitted = _SPEED_MEMORY * self._emitted + tokens.emitted
            self._promised = _SPEED_MEMORY * self._promised + ratio * predicted * self._fixed_speed(batch)

    def least_chance(self, batch: int) -> float:
        """Return the chance of being accepted whole below which a speculation should end.

        A token more lengthens a round, and time is worth the tokens that the present speed would yield in it; it is
        emitted if all before it and itself are accepted.
        """
        ms, k = self.rounds.model(batch).round_ms, min(TYPICAL_K, self.k_max)
        if k < 2:
            return 0.0
        cost = self._slow.get(True, 1.0) * (ms[k] - ms[1]) / (k - 1)
        return min(0.95, max(0.0, max(self.speeds(batch)) * cost / max(self.acceptance, 0.05)))

    def speeds(self, batch: int) -> list[float]:
        """Return the expected tokens per ms of one sequence for K = 0..k_max.

        For a draft that stops, K is the most that it may draft: only K = k_max has a speed, the observed one.
        """
        model = self.rounds.model(batch)
        if self.stops:
            plain = model.round_ms[0] * self._slow.get(False, self._slow.get(True, 1.0))
            speed = self._fixed_speed(batch) * self._emitted / self._promised
            return [1.0 / plain, *[0.0] * (self.k_max - 1), speed]
        power = math.log(min(max(self.acceptance, 1e-3), 0.999)) / math.log(min(max(self._base, 1e-3), 0.999))
        rates = stretch(self.rounds.rates, power)
        # A kind of round that was never timed is taken to be as slow as the other: the machine is the same.
        known = (
            self._slow.get(True, self._slow.get(False, 1.0)),
            self._slow.get(False, self._slow.get(True, 1.0)),
        )
        found = [1.0 / (model.round_ms[0] * known[1])]
        for k in range(1, self.k_max + 1):
            found.append(tokens_from_lengths(length_distribution(rates, k)) / (model.round_ms[k] * known[0]))
        return found

    def _fixed_speed(self, batch: int) -> float:
        """Return what the profile promises of drafts of one length, the best one; computed once for a batch size."""
        model = self.rounds.model(batch)
        if model.batch not in self._best_fixed:
            self._best_fixed[model.batch] = max(
                tokens_from_lengths(length_distribution(self.rounds.rates, k)) / model.round_ms[k]
                for k in range(1, self.k_max + 1)
            )
        return self._best_fixed[model.batch]

    def choose(self, batch: int) -> int:
        """Return K for the next round of a batch."""
        speeds = self.speeds(batch)
        best = max(range(len(speeds)), key=speeds.__getitem__)
        self._vote(best, speeds)
        if self.k > 0:
            self._plain_rounds = 0
            return 0 if self._checks() else self.k
        return self._probe()

    def _checks(self) -> bool:
        """Whether this round is one of AR, to see what the machine does."""
        if self._checking:
            self._checking -= 1
            return True
        self._pause = max(0, self._pause - 1)
        now = self._slow.get(True, self._checked)
        if self._pause or 1.0 / CHECK_DRIFT < now / self._checked < CHECK_DRIFT:
            return False
        self._checked, self._pause, self._checking = now, CHECK_PAUSE, CHECK_ROUNDS - 1
        return True

    def _vote(self, best: int, speeds: Sequence[float]) -> None:
        """Change K when the same direction has been better for some rounds."""
        losing = self.k > 0 and speeds[self.k] < speeds[0]
        wanted = best
        if losing and speeds[best] < (1.0 + SWITCH_GAIN) * speeds[0]:
            wanted = 0
        better = speeds[wanted] >= (1.0 + SWITCH_GAIN) * speeds[self.k] or (losing and wanted == 0)
        if wanted == self.k or not better:
            self._votes = 0
            return
        # Votes for different K above 0 are votes for the same thing.
        same = self._votes > 0 and (wanted > self.k) == (self._rival > self.k)
        self._votes = self._votes + 1 if same else 1
        self._rival = wanted
        if self._votes >= PATIENCE - losing:
            self.k, self._votes = wanted, 0
            self.switches += 1

    def _probe(self) -> int:
        if self._probing:
            self._probing -= 1
            return min(PROBE_K, self.k_max)
        self._plain_rounds += 1
        if self._plain_rounds >= self._next_probe:
            self._plain_rounds, self._probing = 0, PROBE_ROUNDS - 1
            self._next_probe = min(LAST_PROBE, PROBE_GROWTH * self._next_probe)
            self.probes += 1
            self._emitted, self._promised = _STALE * self._emitted, _STALE * self._promised
            return min(PROBE_K, self.k_max)
        return 0


class NoDrafter:
    """Proposes nothing, and says why: AR by choice."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    @property
    def max_context(self) -> int | None:
        """Return None: nothing is read."""
        return None

    def admit(self, request: DraftRequest) -> None:
        """Do nothing."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Speculation]:
        """Return nothing for each."""
        return [EMPTY] * len(requests)

    def release(self, sequence_id: int) -> None:
        """Do nothing."""

    def reset(self) -> None:
        """Do nothing."""

    def check_invariants(self) -> None:
        """Nothing is held."""

    def stats(self, ask_worker: bool = True) -> dict[str, Any]:
        """Return why nothing is proposed."""
        return {"auto": {"num_speculative_tokens": 0, "reason": self.reason}}

    def record(self, limit: int) -> list[Span] | None:
        """Return None: there is no worker."""
        return None

    def close(self) -> None:
        """Do nothing."""


class AdaptiveDrafter:
    """Proposes what the inner drafter proposes for the policy's K; with K = 0 nothing, at no cost.

    A round is timed from one ``propose`` to the next, when both are for the same sequences and the draft had read
    all of them before: a round in which it reads a prompt, or what it missed in AR, says nothing of those to come.
    """

    def __init__(
        self,
        inner: Drafter,
        policy: AutoPolicy,
        reason: str = "",
        clock: Clock = time.perf_counter,
        place: Callable[[bool], None] | None = None,
    ) -> None:
        """``place`` is called before a round of the other kind than the last: whether it has a speculation."""
        self.inner, self.policy, self.reason, self._clock, self._place = inner, policy, reason, clock, place
        self._speculates: bool | None = None
        self._proposed: dict[int, int] = {}  # tokens of the last speculation, by sequence
        self._round: tuple[float, tuple[int, ...], int] | None = None  # begin, sequences, K
        self._typical = True  # whether that round is like others

    @property
    def max_context(self) -> int | None:
        """Tokens that the draft can see."""
        return self.inner.max_context

    @property
    def last_round(self) -> DraftRound | None:
        """How the inner drafter's worker answered last; None when no worker was asked."""
        asked = self._round is not None and self._round[2] > 0
        return self.inner.last_round if asked and isinstance(self.inner, CachingDrafter) else None

    def admit(self, request: DraftRequest) -> None:
        """Let the inner drafter read a prompt, unless it is not in use."""
        if self.policy.k > 0:
            self.inner.admit(request)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Speculation]:
        """Return speculations of the K that is best now."""
        now, names = self._clock(), tuple(request.sequence_id for request in requests)
        self._learn(requests, names, now)
        k = self.policy.choose(len(requests))
        if self._place is not None and self._speculates != (k > 0):
            self._speculates = k > 0
            self._place(k > 0)
        self._round = (now, names, k)
        self._typical = k == 0 or all(name in self._proposed for name in names)
        least = self.policy.least_chance(len(requests)) if k > 0 and self.policy.stops else None
        if k == 0:
            for name in names:
                self._proposed.pop(name, None)
            return [EMPTY] * len(requests)
        asked = [
            replace(
                request,
                wanted=min(k, request.wanted),
                least_chance=least,
                # The outcome of a round without a speculation is none of the inner drafter's.
                outcome=request.outcome if request.sequence_id in self._proposed else None,
            )
            for request in requests
        ]
        speculations = self.inner.propose(asked)
        self._proposed.update({name: len(s) for name, s in zip(names, speculations, strict=True)})
        return speculations

    def release(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self._proposed.pop(sequence_id, None)
        self._round = None
        self.inner.release(sequence_id)

    def reset(self) -> None:
        """Forget every sequence; what was learnt stays."""
        self._proposed.clear()
        self._round = None
        self.inner.reset()

    def check_invariants(self) -> None:
        """Raise RuntimeError when sequences are left that were never released."""
        if self._proposed:
            raise RuntimeError(f"the adaptive drafter still holds sequences {sorted(self._proposed)}")
        self.inner.check_invariants()

    def stats(self, ask_worker: bool = True) -> dict[str, Any]:
        """Return the inner drafter's counters, and K, acceptance, switches and probes of the policy.

        ``least_chance`` is the one for a single sequence, where the draft follows it.
        """
        policy = self.policy
        return {
            **self.inner.stats(ask_worker),
            "auto": {
                "num_speculative_tokens": policy.k,
                "acceptance": policy.acceptance,
                **({"least_chance": policy.least_chance(1)} if policy.stops else {}),
                "num_switches": policy.switches,
                "num_probes": policy.probes,
                "reason": self.reason,
            },
        }

    def record(self, limit: int) -> list[Span] | None:
        """Record the inner drafter's worker, if it has one."""
        return self.inner.record(limit)

    def close(self) -> None:
        """Free the draft."""
        self.inner.close()

    def _learn(self, requests: Sequence[DraftRequest], names: tuple[int, ...], now: float) -> None:
        for request in requests:
            if request.outcome is not None:
                self.policy.observe_outcome(
                    self._proposed.get(request.sequence_id, 0), request.outcome.accepted
                )
        # Without an outcome others than this drafter made the last round.
        ours = all(request.outcome is not None for request in requests)
        if ours and self._round is not None and self._round[1] == names and self._typical:
            begin, _, k = self._round
            self.policy.observe_time(k, len(names), 1e3 * (now - begin), self._drafted(requests))

    def _drafted(self, requests: Sequence[DraftRequest]) -> Drafted | None:
        """Return what was drafted and emitted per sequence in the last round; None when not all of it was verified."""
        if not requests or any(request.outcome is None for request in requests):
            return None
        drafted = sum(self._proposed.get(request.sequence_id, 0) for request in requests)
        emitted = sum(request.outcome.accepted + 1 for request in requests if request.outcome is not None)
        return Drafted(drafted / len(requests), emitted / len(requests))
