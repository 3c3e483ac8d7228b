"""A drafter around a drafter: a policy decides K anew for each round, down to none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sonoran.calibrate.policy import AutoPolicy, Drafted
from sonoran.calibrate.timing import Clock
from sonoran.engine.drafters.base import CachingDrafter, Drafter, DraftRequest, DraftRound
from sonoran.sampling.proposals import EMPTY, Speculation


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

    def stats(self) -> dict[str, Any]:
        """Return why nothing is proposed."""
        return {"auto": {"num_speculative_tokens": 0, "reason": self.reason}}

    def close(self) -> None:
        """Do nothing."""


class AdaptiveDrafter:
    """Proposes what the inner drafter proposes for the policy's K; with K = 0 nothing, at no cost.

    A round is timed from one ``propose`` to the next, when both are for the same sequences and the draft had read
    all of them before: a round in which it reads a prompt, or what it missed in AR, says nothing of those to come.
    """

    def __init__(
        self, inner: Drafter, policy: AutoPolicy, reason: str = "", clock: Clock = time.perf_counter
    ) -> None:
        self.inner, self.policy, self.reason, self._clock = inner, policy, reason, clock
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

    def stats(self) -> dict[str, Any]:
        """Return the inner drafter's counters, and K, acceptance, switches and probes of the policy.

        ``least_chance`` is the one for a single sequence, where the draft follows it.
        """
        policy = self.policy
        return {
            **self.inner.stats(),
            "auto": {
                "num_speculative_tokens": policy.k,
                "acceptance": policy.acceptance,
                **({"least_chance": policy.least_chance(1)} if policy.stops else {}),
                "num_switches": policy.switches,
                "num_probes": policy.probes,
                "reason": self.reason,
            },
        }

    def close(self) -> None:
        """Free the draft."""
        self.inner.close()

    def _learn(self, requests: Sequence[DraftRequest], names: tuple[int, ...], now: float) -> None:
        for request in requests:
            if request.outcome is not None:
                self.policy.observe_outcome(
                    self._proposed.get(request.sequence_id, 0), request.outcome.accepted
                )
        if self._round is not None and self._round[1] == names and self._typical:
            begin, _, k = self._round
            self.policy.observe_time(k, len(names), 1e3 * (now - begin), self._drafted(requests))

    def _drafted(self, requests: Sequence[DraftRequest]) -> Drafted | None:
        """Return what was drafted and emitted per sequence in the last round; None when not all of it was verified."""
        if not requests or any(request.outcome is None for request in requests):
            return None
        drafted = sum(self._proposed.get(request.sequence_id, 0) for request in requests)
        emitted = sum(request.outcome.accepted + 1 for request in requests if request.outcome is not None)
        return Drafted(drafted / len(requests), emitted / len(requests))
