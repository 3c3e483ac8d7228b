"""What a pass costs on a device that is not here: bytes over bandwidth, and a floor for every layer."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sonoran.errors import PlanError, nearest
from sonoran.planning.scaling.models import data_text, known_models
from sonoran.planning.scaling.quantities import within
from sonoran.theory.distributions import Floats

DEPTH = (0.1128, 0.2567)
"""Layers of a model of N parameters whose depth is not known, 0.1128 N^0.2567: fitted to the built-in table, +-22 %."""


OFF = (1.1 / 0.9, 0.9 / 1.1)
"""How far draft passes may be off against the target's: each of the four passes behind the H100's floor lies within 10 %
of the formula.
"""


@dataclass(frozen=True, slots=True)
class Device:
    """One device, or all cores of a machine.

    ``bandwidth`` is in GB/s. ``layer_ms`` is what a layer costs however small it is (launches, synchronisation of
    tensor parallel ranks), ``service_ms`` what a draft worker adds to a round of SSD. ``gmacs`` are multiply-adds in
    1e9 per second. ``watts`` is None where no figure is given. ``about`` says what was measured and what is assumed.
    """

    name: str
    bandwidth: float
    layer_ms: float
    gmacs: float
    service_ms: float
    watts: float | None
    about: str


@functools.cache
def devices() -> dict[str, Device]:
    """The built-in devices by name."""
    rows: list[dict[str, Any]] = json.loads(data_text("devices.json"))
    return {row["name"]: Device(**row) for row in rows}


def find_device(name: str) -> Device:
    """Look a device up. Raises PlanError naming the nearest one."""
    found = devices().get(name.strip().lower())
    if found is None:
        raise PlanError(
            f"unknown device {name!r}{nearest(name.lower(), devices())}; valid: {', '.join(devices())}"
        )
    return found


def depth(parameters: ArrayLike) -> Floats:
    """Layers of models of these sizes: of the built-in table where it has one of exactly this size, else ``DEPTH``."""
    sizes = np.asarray(parameters, float)
    layers = DEPTH[0] * sizes ** DEPTH[1]
    for size, known in _known_depths().items():
        layers = np.where(sizes == size, known, layers)
    return np.asarray(layers)


@functools.cache
def _known_depths() -> dict[float, float]:
    return {float(model.parameters): float(model.layers) for model in known_models()}


@dataclass(frozen=True, slots=True)
class DeviceCost:
    """Milliseconds of passes on devices, batch 1 and a short context (a cost model, see ``CostModel``).

    A pass costs ``layers * layer_ms + max(bytes / bandwidth, rows * N / gmacs)``; ``tensor_parallel`` target devices
    share bytes and multiply-adds, not the layers' floor. SD drafts on one of the target's devices, SSD on a
    ``draft_device`` of its own (default: one more of the same). Weights have ``target_bits`` and ``draft_bits``.
    ``branches`` is the number of rows of a pass over the speculation cache; draft passes take ``draft_factor`` times
    what the formula says.
    """

    device: Device
    tensor_parallel: int = 1
    draft_device: Device | None = None
    target_bits: float = 16.0
    draft_bits: float = 16.0
    branches: int = 24
    draft_factor: float = 1.0

    def __post_init__(self) -> None:
        within("tensor parallel devices", self.tensor_parallel, 1, 64)
        for name in ("target_bits", "draft_bits"):
            within(name, getattr(self, name), 1, 32)

    @property
    def unit(self) -> str:
        """Milliseconds."""
        return "ms"

    def verify(self, target: float, gamma: ArrayLike) -> Floats:
        """Milliseconds of one pass of the target over gamma + 1 rows."""
        return _pass(
            self.device, self.tensor_parallel, target, self.target_bits, np.asarray(gamma, float) + 1.0
        )

    def draft(self, target: float, draft: ArrayLike, gamma: ArrayLike) -> Floats:
        """Milliseconds of gamma passes over one row, on one of the target's devices."""
        one = _pass(self.device, 1, draft, self.draft_bits, 1.0)
        return np.asarray(np.asarray(gamma, float) * self.draft_factor * one)

    def predraft(self, target: float, draft: ArrayLike, gamma: ArrayLike) -> Floats:
        """Milliseconds of a round of the draft worker: service, a pass over gamma + 1 rows, gamma over the branches."""
        device, steps = self.draft_device or self.device, np.asarray(gamma, float)
        trunk = _pass(device, 1, draft, self.draft_bits, steps + 1.0)
        tree = _pass(device, 1, draft, self.draft_bits, self.branches)
        return np.asarray(device.service_ms + self.draft_factor * (trunk + steps * tree))

    def bounds(self) -> tuple[DeviceCost, DeviceCost]:
        """The same with draft passes as slow and as fast, against the target's, as the formula may be off."""
        slow, fast = (replace(self, draft_factor=self.draft_factor * factor) for factor in OFF)
        return slow, fast


def _pass(device: Device, count: int, parameters: ArrayLike, bits: float, rows: ArrayLike) -> Floats:
    size = np.asarray(parameters, float)
    reading = size * bits / 8e6 / (device.bandwidth * count)
    counting = np.asarray(rows, float) * size / 1e6 / (device.gmacs * count)
    return np.asarray(depth(size) * device.layer_ms + np.maximum(reading, counting))
