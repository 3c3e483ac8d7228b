"""Tokens per second, per device and per dollar of AR, SD and SSD, with the draft's own device paid for."""

from __future__ import annotations

from dataclasses import dataclass

from sonoran.planning.scaling.devices import DeviceCost
from sonoran.planning.scaling.quantities import finite
from sonoran.planning.scaling.rates import SsdSettings, best_gamma
from sonoran.theory.speedup import non_negative


@dataclass(frozen=True, slots=True)
class Deployment:
    """One way to run a pair. Cost in the price's currency and energy in kWh are per million tokens, None if unknown."""

    mode: str
    num_speculative_tokens: int
    devices: int
    tokens_per_s: float
    tokens_per_s_per_device: float
    cost: float | None
    energy_kwh: float | None


def deployments(
    cost: DeviceCost,
    settings: SsdSettings,
    alpha: float,
    target: float,
    draft: float,
    price: float | None = None,
) -> tuple[Deployment, ...]:
    """AR and SD on the target's devices, SSD on these and one for the draft, each with its best K, batch 1.

    ``price`` is that of one target device and hour; a draft's device of another kind costs the same here. Raises
    PlanError.
    """
    if price is not None:
        non_negative("price", finite("price", price))
    plain = 1e3 / float(cost.verify(target, 0.0))
    sd_k, sd = best_gamma(cost, None, alpha, target, draft)
    ssd_k, ssd = best_gamma(cost, settings, alpha, target, draft)
    own = cost.tensor_parallel
    ways = (("ar", 0, own, 1.0), ("sd", sd_k, own, sd), ("ssd", ssd_k, own + 1, ssd))
    return tuple(_deployment(cost, mode, k, count, plain * ratio, price) for mode, k, count, ratio in ways)


def _deployment(
    cost: DeviceCost, mode: str, k: int, count: int, speed: float, price: float | None
) -> Deployment:
    hours = 1e6 / speed / 3600
    draft = cost.draft_device or cost.device
    watts = None
    if cost.device.watts is not None and (mode != "ssd" or draft.watts is not None):
        watts = cost.tensor_parallel * cost.device.watts + (draft.watts or 0.0 if mode == "ssd" else 0.0)
    return Deployment(
        mode,
        k,
        count,
        speed,
        speed / count,
        None if price is None else hours * count * price,
        None if watts is None else hours * watts / 1e3,
    )
