"""The profile: everything that was measured of a pair of models on a machine, versioned plain data.

Times are milliseconds. A profile belongs to its key: other models, another machine or other precisions are
another profile.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec

from sonoran.backends.load import Role
from sonoran.errors import PlanError
from sonoran.models.untrusted import refusing
from sonoran.planning.profile.acceptance import LEAST_POSITIONS, Acceptance, judged
from sonoran.theory.latency import LARGEST, LatencyCurve

VERSION = 3
NOISY_SPREAD = 0.10
"""Above this median spread (interquartile range / median) of passes, measurements are not to be trusted."""

NOISY_INVERSION = 0.30
"""Nor when a pass of fewer rows took that much longer than one of more rows."""

WAKE_UP_MS = 2.0
"""What threads that slept may take to wake up."""

MOST = 2**60
"""Bytes, parameters, tokens, rows: no number of things is larger."""

Cores = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelKey:
    """A model as it runs: name for people, bytes and parameters of the file, precision, restricted vocabulary."""

    name: str
    file_bytes: int
    parameters: int
    quantize: str | None = None
    draft_vocab: int | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.file_bytes <= MOST and 0 <= self.parameters <= MOST):
            raise PlanError(f"a model has at most {MOST} bytes and parameters, and no fewer than 0")


@dataclass(frozen=True, slots=True)
class MachineKey:
    """Processor, kernels in use, and the cores that may be used."""

    processor: str
    kernels: str
    cores: Cores


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What a profile is about; its digest is the name of its file."""

    target: ModelKey
    draft: ModelKey | None
    machine: MachineKey

    @property
    def digest(self) -> str:
        """Return 16 hexadecimal digits that depend on every field, and on the version of the format."""
        text = json.dumps([VERSION, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Timing:
    """Median of ``count`` measurements; ``spread`` is their interquartile range / median."""

    ms: float
    spread: float = 0.0
    count: int = 1

    def __post_init__(self) -> None:
        if not (0.0 <= self.ms <= LARGEST and self.spread >= 0.0 and 1 <= self.count <= MOST):
            raise PlanError(f"a timing needs ms >= 0, spread >= 0 and count >= 1, got {self!r}")

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Timing:
        """Summarise at least one measurement. Raises PlanError for none."""
        return cls(*median_and_spread(milliseconds), len(milliseconds))


def median_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the interquartile range / median (0 for one value). Raises PlanError for no values."""
    if not values:
        raise PlanError("nothing was measured")
    median = statistics.median(values)
    if len(values) < 2 or median <= 0.0:
        return median, 0.0
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return median, (third - first) / median


@dataclass(frozen=True, slots=True)
class PassPoint:
    """Time of a pass of ``rows`` rows."""

    rows: int
    time: Timing


@dataclass(frozen=True, slots=True)
class PassCurve:
    """Passes of one model on some cores behind ``context`` tokens.

    ``beside`` names the cores on which the other model worked meanwhile; None: nothing did.
    """

    role: Role
    cores: Cores
    context: int
    points: tuple[PassPoint, ...]
    beside: Cores | None = None

    def __post_init__(self) -> None:
        if not self.points or not self.cores or not 1 <= self.context <= MOST:
            raise PlanError(f"a curve needs points, cores and a context of at least 1 token, got {self!r}")
        self.curve  # noqa: B018  # whether these points make a curve

    @property
    def curve(self) -> LatencyCurve:
        """Return ms by rows; a pass counts as no longer than one of more rows, whatever disturbed it."""
        shortest = math.inf
        points: list[tuple[float, float]] = []
        for point in sorted(self.points, key=lambda p: -p.rows):
            shortest = min(shortest, point.time.ms)
            points.append((point.rows, shortest))
        return LatencyCurve(tuple(points))

    @property
    def inversion(self) -> float:
        """Return by how much a pass of fewer rows was the longer one, at worst: 0 for a curve that only grows.

        Differences below ``WAKE_UP_MS`` are threads that had to wake up.
        """
        curve = self.curve
        pairs = [(point.time.ms, curve(point.rows)) for point in self.points]
        return max((ms / least - 1.0 for ms, least in pairs if ms - least > WAKE_UP_MS), default=0.0)


@dataclass(frozen=True, slots=True)
class SamplingTime:
    """What one temperature costs: verifying a row, drawing a draft token, predicting one sequence's outcomes."""

    temperature: float
    row: Timing
    token: Timing
    guess: Timing


@dataclass(frozen=True, slots=True)
class Measured:
    """A configuration that was run after it had been predicted; tokens per second of the whole batch.

    ``spread`` is (fastest - slowest) / median of its runs.
    """

    label: str
    predicted: float
    measured: float
    spread: float
    batch: int
    temperature: float

    @property
    def error(self) -> float:
        """Return predicted / measured - 1."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class Profile:
    """Measurements of one key. ``quick`` marks a measurement of a second or two. Raises PlanError."""

    key: ProfileKey
    created: str  # date and time, ISO 8601
    passes: tuple[PassCurve, ...]
    acceptance: tuple[Acceptance, ...] = ()
    sampling: tuple[SamplingTime, ...] = ()
    message: Timing = field(default_factory=lambda: Timing(0.0))
    host: Timing = field(default_factory=lambda: Timing(0.0))  # per round, beyond passes and sampling
    measured: tuple[Measured, ...] = ()
    elapsed_s: float = 0.0
    quick: bool = False
    prompts: str = ""
    made_for: str = ""  # state of program and files, by which a quick profile is out of date
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise PlanError(
                f"the profile has version {self.version}, this program reads {VERSION}; calibrate again"
            )
        if not any(curve.role == "target" and curve.beside is None for curve in self.passes):
            raise PlanError("a profile needs passes of the target with nothing beside them")

    @property
    def spread(self) -> float:
        """Return the median spread of all passes."""
        return statistics.median_high(point.time.spread for curve in self.passes for point in curve.points)

    @property
    def noisy(self) -> bool:
        """Whether the machine was too busy for its numbers to mean much."""
        return self.spread > NOISY_SPREAD or self.inversion > NOISY_INVERSION

    @property
    def inversion(self) -> float:
        """Return the worst ``PassCurve.inversion``."""
        return max(curve.inversion for curve in self.passes)

    @property
    def thin(self) -> bool:
        """Whether acceptance was looked at in too few positions to tell a draft by."""
        return any(one.positions < LEAST_POSITIONS for one in self.acceptance)

    def judged(self) -> Profile:
        """Return the profile with its acceptance filled up by a typical draft's where it is thin."""
        return replace(self, acceptance=tuple(map(judged, self.acceptance)))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return what whoever decides by this profile has to say with the decision."""
        found = [self.verdict] if self.noisy else []
        if self.thin:
            fewest = min(one.positions for one in self.acceptance)
            found.append(f"acceptance is in part assumed: only {fewest} positions were measured")
        if self.quick:
            found.append(f"measured in {self.elapsed_s:.1f} s; sonoran calibrate knows more")
        return tuple(found)

    @property
    def verdict(self) -> str:
        """Return one sentence about how far the numbers can be trusted."""
        advice = "stop other work on this machine and calibrate again"
        if self.spread > NOISY_SPREAD:
            return f"too noisy: the same pass varies by {self.spread:.0%} (more than {NOISY_SPREAD:.0%}); {advice}"
        if self.inversion > NOISY_INVERSION:
            return (
                f"too noisy: a pass of fewer rows took {1.0 + self.inversion:.1f}x one of more rows; {advice}"
            )
        return f"steady: the same pass varies by {self.spread:.1%}"

    def to_json(self) -> bytes:
        """Return the file's bytes."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @staticmethod
    @refusing("profile", PlanError)
    def from_json(data: bytes) -> Profile:
        """Read ``to_json``. Raises PlanError for what is not a profile, naming the place."""
        try:
            return msgspec.json.decode(data, type=Profile)
        except msgspec.MsgspecError as error:
            raise PlanError(f"not a profile of version {VERSION}: {error}") from error

    def summary(self) -> dict[str, Any]:
        """Return what a reader wants to know first."""
        return {
            "key": asdict(self.key),
            "digest": self.key.digest,
            "created": self.created,
            "quick": self.quick,
            "elapsed_s": self.elapsed_s,
            "spread": self.spread,
            "noisy": self.noisy,
            "verdict": self.verdict,
            "prompts": self.prompts,
        }
