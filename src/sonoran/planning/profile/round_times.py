"""Expected times of rounds by K and batch size: what mode auto knows before it has decoded anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from sonoran.errors import PlanError
from sonoran.planning.profile.placement import Placement, Workload, costs_for, nearest_acceptance
from sonoran.planning.profile.predict import predict_all
from sonoran.planning.profile.profile import Profile
from sonoran.planning.profile.replay import replay_lengths
from sonoran.planning.rounds.formulas import autoregressive, synchronous
from sonoran.planning.rounds.plan import RoundMode, RoundPlan
from sonoran.theory.distributions import length_distribution
from sonoran.theory.speedup import tokens_from_lengths


@dataclass(frozen=True, slots=True)
class RoundModel:
    """Predicted ms of a round for K = 0..K_max at one batch size."""

    batch: int
    round_ms: tuple[float, ...]


class Rounds(Protocol):
    """What a policy knows beforehand."""

    @property
    def rates(self) -> tuple[float, ...]:
        """Acceptance by position."""
        ...

    def model(self, batch: int) -> RoundModel:
        """Return predicted rounds of a batch."""
        ...


class ProfileRounds:
    """Rounds of one placement in SD or SSD, from a profile, computed once for each batch size.

    ``plain`` is where rounds of AR run (default: where the target does). Raises PlanError when the profile has no
    acceptance for the workload.
    """

    def __init__(
        self,
        profile: Profile,
        placement: Placement,
        mode: RoundMode,
        k_max: int,
        context: int,
        temperature: float,
        plain: Placement | None = None,
    ) -> None:
        self._profile, self._placement, self._mode, self._k_max = profile, placement, mode, k_max
        self._context, self._temperature, self._plain = context, temperature, plain or placement
        self._models: dict[int, RoundModel] = {}
        acceptance = nearest_acceptance(profile, self._workload(1))
        if acceptance is None:
            raise PlanError("the profile has no acceptance; calibrate with a draft")
        longest = acceptance.longest
        if longest < 2:
            raise PlanError("the calibration texts are too short to tell acceptance; calibrate again")
        counts = replay_lengths(acceptance, min(k_max, longest - 1))
        reached, rates = sum(counts), []
        for stopped in counts[:-1]:
            # Four observations at the pooled rate, for positions that were hardly ever reached.
            rates.append((reached - stopped + 4.0 * acceptance.rate) / (reached + 4.0))
            reached -= stopped
        self._rates = tuple(rates)

    @property
    def rates(self) -> tuple[float, ...]:
        """Acceptance by position."""
        return self._rates

    def model(self, batch: int) -> RoundModel:
        """Return predicted rounds of a batch; sizes between powers of two share the next larger one."""
        size = 1 << max(0, batch - 1).bit_length()
        if size not in self._models:
            self._models[size] = self._predict(size)
        return self._models[size]

    def prepare(self, largest: int) -> None:
        """Predict every batch size up to ``largest`` now, so that serving never waits for it."""
        size = 1
        while size < 2 * largest:
            self.model(size)
            size *= 2

    def _predict(self, batch: int) -> RoundModel:
        workload = self._workload(batch)
        costs = costs_for(self._profile, self._placement, workload)
        undisturbed = costs_for(self._profile, self._plain, workload)
        plain = autoregressive(RoundPlan("ar", batch=batch), undisturbed).round_ms
        if self._mode == "sd":
            rounds = [
                synchronous(RoundPlan("sd", k, batch), costs, length_distribution(self._rates, k))
                for k in self._ks()
            ]
            return RoundModel(batch, (plain, *(r.round_ms for r in rounds)))
        alone = Placement("alone", self._placement.target_cores)
        found = predict_all(
            self._profile,
            workload,
            k_values=self._ks(),
            budgets=(4, 8, 16),
            where=(alone, self._placement),
            simulated=0,
        )
        # Rounds whose speed and tokens agree with the best prediction for each K.
        best: dict[int, float] = {}
        for p in found:
            if p.mode == "ssd":
                emitted = tokens_from_lengths(length_distribution(self._rates, p.num_speculative_tokens))
                ms = 1e3 * batch * emitted / p.tokens_per_s
                best[p.num_speculative_tokens] = min(best.get(p.num_speculative_tokens, math.inf), ms)
        return RoundModel(batch, (plain, *(best.get(k, math.inf) for k in self._ks())))

    def _ks(self) -> range:
        return range(1, self._k_max + 1)

    def _workload(self, batch: int) -> Workload:
        return Workload(batch, self._context, self._temperature)
