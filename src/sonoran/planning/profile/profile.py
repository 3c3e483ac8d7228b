"""The profile: everything that was measured of a pair of models on a machine, versioned plain data.

Times are milliseconds. A profile belongs to its key: other models, another machine or other precisions are
another profile.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from sonoran.errors import PlanError
from sonoran.models.cache import cache_dir
from sonoran.theory.distributions import Floats, concave_majorant
from sonoran.theory.latency import LatencyCurve

DEEPEST = 64
CANDIDATES = 8
"""Candidates of a position whose chances are kept."""

Chances = tuple[tuple[float, ...], ...]
Verification = Literal["coupled", "rejection"]


@dataclass(frozen=True, slots=True)
class Trace:
    """One text. Raises PlanError for ranks that cannot be."""

    rejected: tuple[int, ...]
    free: tuple[int, ...]
    chances: Chances = ()
    free_chances: Chances = ()

    def __post_init__(self) -> None:
        if len(self.rejected) != len(self.free):
            raise PlanError(
                f"a trace has {len(self.rejected)} and {len(self.free)} positions; they must agree"
            )
        if any(len(kept) not in (0, len(self.free)) for kept in (self.chances, self.free_chances)):
            raise PlanError("a trace keeps the chances of all its positions, or of none")
        if any(not 0 <= rank <= DEEPEST + 1 for rank in self.rejected):
            raise PlanError(f"ranks after a rejection lie from 0 (accepted) to {DEEPEST + 1}")
        if any(not 1 <= rank <= DEEPEST + 1 for rank in self.free):
            raise PlanError(f"ranks of the bonus token lie from 1 to {DEEPEST + 1}")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Traces under one verification rule and temperature; perplexities of the text under both models."""

    verification: Verification
    temperature: float
    traces: tuple[Trace, ...]
    target_perplexity: float | None = None
    draft_perplexity: float | None = None

    def __post_init__(self) -> None:
        if not any(len(trace.rejected) for trace in self.traces):
            raise PlanError("acceptance needs at least one position")

    @property
    def has_chances(self) -> bool:
        """Whether the draft's confidence is known everywhere."""
        return all(len(trace.chances) == len(trace.free_chances) == len(trace.free) for trace in self.traces)

    @property
    def positions(self) -> int:
        """Return how many positions were looked at."""
        return sum(len(trace.rejected) for trace in self.traces)

    @property
    def rate(self) -> float:
        """Return the share of positions where the draft's token was accepted."""
        return sum(trace.rejected.count(0) for trace in self.traces) / self.positions

    @property
    def standard_error(self) -> float:
        """Return the standard error of ``rate``, from how much texts differ; binomial for a single text."""
        n, rate = self.positions, self.rate
        if len(self.traces) < 2:
            return math.sqrt(rate * (1.0 - rate) / n)
        sizes = np.array([len(trace.rejected) for trace in self.traces], float)
        passed = np.array([trace.rejected.count(0) for trace in self.traces], float)
        # Ratio estimator over clusters: texts are drawn, positions inside a text resemble each other.
        residual = passed - rate * sizes
        variance = float((residual**2).sum()) * len(sizes) / (len(sizes) - 1)
        return math.sqrt(variance) / n

    @property
    def rejected_cdf(self) -> Floats:
        """Return h(F) after a rejection, F = 0..DEEPEST, made concave."""
        return _cdf([rank for trace in self.traces for rank in trace.rejected if rank])

    @property
    def free_cdf(self) -> Floats:
        """Return h(F) where nothing was sent, F = 0..DEEPEST, made concave."""
        return _cdf([rank for trace in self.traces for rank in trace.free])


def _cdf(ranks: list[int]) -> Floats:
    counts = np.bincount(np.asarray(ranks, np.int64), minlength=DEEPEST + 2)[: DEEPEST + 1].astype(np.float64)
    counts[0] = 0.0
    return concave_majorant(np.cumsum(counts) / max(1, len(ranks)))


VERSION = 3
NOISY_SPREAD = 0.10
"""Above this median spread (interquartile range / median) of passes, measurements are not to be trusted."""

NOISY_INVERSION = 0.30
"""Nor when a pass of fewer rows took that much longer than one of more rows."""

WAKE_UP_MS = 2.0

Role = Literal["target", "draft"]
Cores = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelKey:
    """A model as it runs: name for people, bytes and parameters of the file, precision, restricted vocabulary."""

    name: str
    file_bytes: int
    parameters: int
    quantize: str | None = None
    draft_vocab: int | None = None


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
        if not (math.isfinite(self.ms) and self.ms >= 0.0 and self.spread >= 0.0 and self.count >= 1):
            raise PlanError(f"a timing needs ms >= 0, spread >= 0 and count >= 1, got {self!r}")

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Timing:
        """Summarise at least one measurement. Raises PlanError for none."""
        if not milliseconds:
            raise PlanError("nothing was measured")
        median, spread = statistics.median(milliseconds), 0.0
        if len(milliseconds) > 1 and median > 0.0:
            first, _, third = statistics.quantiles(milliseconds, n=4, method="inclusive")
            spread = (third - first) / median
        return cls(median, spread, len(milliseconds))


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
        if not self.points or not self.cores or self.context < 1:
            raise PlanError(f"a curve needs points, cores and a context of at least 1 token, got {self!r}")

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
class Verified:
    """A configuration that was run after it had been predicted; tokens per second of the whole batch."""

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
    verified: tuple[Verified, ...] = ()
    elapsed_s: float = 0.0
    quick: bool = False
    prompts: str = ""
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
        spreads = sorted(point.time.spread for curve in self.passes for point in curve.points)
        return spreads[len(spreads) // 2]

    @property
    def noisy(self) -> bool:
        """Whether the machine was too busy for its numbers to mean much."""
        return self.spread > NOISY_SPREAD or self.inversion > NOISY_INVERSION

    @property
    def inversion(self) -> float:
        """Return the worst ``PassCurve.inversion``."""
        return max(curve.inversion for curve in self.passes)

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


FOLDER = "profiles"


def profile_path(key: ProfileKey, cache: Path | None = None) -> Path:
    """Return where the profile of a key lies, whether it is there or not."""
    return (cache or cache_dir()) / FOLDER / f"{key.digest}.json"


def save_profile(profile: Profile, cache: Path | None = None) -> Path:
    """Write a profile, in one step, over an older one; return its path. Raises PlanError."""
    path = profile_path(profile.key, cache)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        with os.fdopen(handle, "wb") as stream:
            stream.write(profile.to_json())
        Path(name).replace(path)
    except OSError as error:
        raise PlanError(f"the profile cannot be written to {path}: {error.strerror or error}") from error
    return path


def load_profile(key: ProfileKey, cache: Path | None = None) -> Profile | None:
    """Return the profile of a key, None if there is none. Raises PlanError for a damaged file."""
    path = profile_path(key, cache)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PlanError(f"the profile {path} cannot be read: {error.strerror or error}") from error
    try:
        profile = Profile.from_json(data)
    except PlanError as error:
        raise PlanError(f"{path}: {error}; delete it or calibrate again") from error
    return profile if profile.key == key else None


def load_profiles(cache: Path | None = None) -> list[Profile]:
    """Return every readable profile, newest first; damaged files and other versions are left out."""
    profiles = []
    for path in ((cache or cache_dir()) / FOLDER).glob("*.json"):
        try:
            profiles.append(Profile.from_json(path.read_bytes()))
        except (OSError, PlanError):
            continue
    return sorted(profiles, key=lambda profile: profile.created, reverse=True)
