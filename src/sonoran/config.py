"""Configuration of the engine and of speculation, checked when it is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar, cast, get_args

from sonoran.errors import ConfigError, nearest

Method = Literal["draft_model", "ngram", "ssd", "auto"]
Verification = Literal["coupled", "rejection"]
Quantize = Literal["bf16", "int8", "int4"]
FanOutRule = Literal["confidence", "uniform", "geometric", "measured", "explicit"]
Backup = Literal["draft", "ngram", "random", "none", "auto"]
Precision = Literal["bf16", "int8", "int4", "int3"]
"""To what weights are lowered on load; ``int3`` is 3 bits for the feed-forward matrices and 4 for the others."""

DraftQuantize = Literal["file", "bf16", "int8", "int4", "int3"]

_MODEL_KEYS = frozenset({"model", "draft_vocab", "threads", "cores", "quantize"})
METHOD_KEYS: dict[str, frozenset[str]] = {
    "draft_model": _MODEL_KEYS | {"least_chance"},
    "ssd": _MODEL_KEYS
    | {"fan_out", "fan_out_primary", "fan_out_backup", "budget", "backup", "saguaro_c", "draft_address"}
    | {"top_up", "least_chance", "draft_key_file"},
    "ngram": frozenset({"prompt_lookup_min", "prompt_lookup_max"}),
    "auto": frozenset({"model", "draft_vocab", "quantize"}),
}
"""Keys of a speculative configuration that only make sense for one method."""

COMMON_KEYS = frozenset({"method", "num_speculative_tokens", "verification"})
MAX_SPECULATIVE_TOKENS = 64
AUTO_SPECULATIVE_TOKENS = 8
"""Method auto chooses K for each round, up to this unless asked for otherwise."""

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How much the engine may hold and do at once. Lengths are in tokens."""

    max_model_len: int | None = None  # prompt and output together; default: the model's context or what fits
    max_num_seqs: int = 16  # sequences decoded at once
    max_num_batched_tokens: int = 256  # rows of one forward pass
    kv_cache_bytes: int | None = None
    num_kv_blocks: int | None = None
    block_size: int = 16
    threads: int | None = None
    cores: tuple[int, ...] | None = None
    quantize: Quantize | None = None
    seed: int | None = None
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "cores", parse_cores(self.cores))
        for name in ("max_model_len", "kv_cache_bytes", "num_kv_blocks", "threads"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1)
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size"):
            _whole(name, getattr(self, name), 1)
        if self.max_model_len == 1:
            raise ConfigError("max_model_len must be at least 2 (one prompt token and one new token), got 1")
        if self.kv_cache_bytes is not None and self.num_kv_blocks is not None:
            raise ConfigError("give kv_cache_bytes or num_kv_blocks, not both")
        if self.max_num_batched_tokens <= self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must exceed max_num_seqs "
                f"({self.max_num_seqs}): each sequence needs a row, and a prompt at least one more"
            )
        if self.seed is not None:
            _whole("seed", self.seed, 0)
        _choice("quantize", self.quantize, (*get_args(Quantize), None))


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """What drafts, how much, and which rule verifies."""

    method: Method
    model: str | None = None  # path or name of the draft; "auto" is the default draft of the target
    num_speculative_tokens: int = 4
    draft_vocab: int | None = None  # ids below it, special tokens and the texts' own; None: 32768, 0: any
    threads: int | None = None
    cores: tuple[int, ...] | None = None
    quantize: DraftQuantize | None = None  # None: 4 bits, 3 for some known drafts; "file": as it is
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 5
    verification: Verification = "coupled"
    # SSD: see draftworker.settings.SpeculationSettings, which checks the first six.
    fan_out: str = "confidence"
    fan_out_primary: tuple[int, ...] | None = None
    fan_out_backup: tuple[int, ...] | None = None
    budget: int | str = "auto"
    backup: str = "auto"
    saguaro_c: float = 1.0
    top_up: bool = True  # draft an unfinished branch on while that is worth the wait
    least_chance: float = 0.5  # a speculation ends where the draft gives less that all of it is accepted
    draft_address: str | None = None  # of a worker that runs already: tcp://host:port
    draft_key_file: str | None = None  # CURVE keys for it

    def __post_init__(self) -> None:
        object.__setattr__(self, "cores", parse_cores(self.cores))
        _choice("method", self.method, get_args(Method))
        _choice("verification", self.verification, get_args(Verification))
        _choice("quantize", self.quantize, (*get_args(DraftQuantize), None))
        _whole("num_speculative_tokens", self.num_speculative_tokens, 0, MAX_SPECULATIVE_TOKENS)
        for name, least in (("draft_vocab", 0), ("threads", 1)):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), least)
        _whole("prompt_lookup_min", self.prompt_lookup_min, 1)
        _whole("prompt_lookup_max", self.prompt_lookup_max, 1)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min ({self.prompt_lookup_min}) exceeds prompt_lookup_max "
                f"({self.prompt_lookup_max})"
            )
        if self.method in ("draft_model", "auto") and not self.model:
            raise ConfigError(f"method {self.method!r} needs a model: a path, a name, or 'auto'")
        _choice("top_up", self.top_up, (True, False))
        if not isinstance(self.least_chance, int | float) or not 0.0 <= self.least_chance <= 1.0:
            raise ConfigError(f"least_chance must lie in [0, 1], got {self.least_chance!r}")
        if self.method == "ssd":
            self._check_worker()

    def _check_worker(self) -> None:
        """Either a model for a worker of our own, or the address of one that runs already."""
        if (self.model is None) == (self.draft_address is None):
            raise ConfigError("method 'ssd' needs a model, or the draft_address of a worker that has one")
        if self.draft_key_file is not None and self.draft_address is None:
            raise ConfigError("draft_key_file is for a worker elsewhere; it needs a draft_address")
        for name in ("draft_vocab", "threads", "cores", "quantize"):
            if self.draft_address is not None and getattr(self, name) is not None:
                raise ConfigError(f"{name} is decided where the worker at {self.draft_address} was started")

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any] | SpeculativeConfig) -> SpeculativeConfig:
        """Check a dictionary with vLLM's key names. The method follows from the model when it is omitted;
        ``draft_cores`` is another name of ``cores``.

        Raises ConfigError for an unknown key (naming the nearest), for a key of another method, and for
        values out of range.
        """
        if isinstance(given, SpeculativeConfig):
            return given
        values = dict(given)
        if "draft_cores" in values:
            if "cores" in values:
                raise ConfigError("speculative_config has both cores and draft_cores; they are the same")
            values["cores"] = values.pop("draft_cores")
        reject_unknown("speculative_config", values, (field.name for field in fields(cls)))
        if values.get("method") is None:
            values["method"] = _infer_method(values.get("model"))
        _choice("method", values["method"], get_args(Method))
        method = cast(Method, values["method"])
        if method == "ngram" and values.get("model") == "ngram":
            del values["model"]
        if method == "auto":
            values.setdefault("num_speculative_tokens", AUTO_SPECULATIVE_TOKENS)
        for key in sorted(set(values) - COMMON_KEYS - METHOD_KEYS[method]):
            owners = [name for name, keys in METHOD_KEYS.items() if key in keys]
            raise ConfigError(
                f"speculative_config key {key!r} belongs to method {', '.join(map(repr, owners))}, "
                f"not to {method!r}"
            )
        return cls(**values)


def from_keywords(config: type[C], what: str, given: Mapping[str, Any]) -> C:
    """Build a configuration from keywords; ConfigError names the nearest key for a wrong one."""
    reject_unknown(what, given, (field.name for field in fields(config)))  # type: ignore[arg-type]
    return config(**given)


def reject_unknown(what: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise ConfigError for the first key of `given` that is not known."""
    names = list(known)
    for key in given:
        if key not in names:
            raise ConfigError(f"unknown {what} key {key!r}{nearest(str(key), names)}")


def parse_cores(value: str | Iterable[int] | None) -> tuple[int, ...] | None:
    """Return core numbers from ``"0,2-5"`` or from numbers; None stays None.

    Raises ConfigError for anything else, for negative numbers and for repetitions.
    """
    if value is None:
        return None
    try:
        cores = tuple(_spans(value)) if isinstance(value, str) else tuple(int(core) for core in value)
    except (TypeError, ValueError):
        raise ConfigError(f"cores must look like '0,2-5', got {value!r}") from None
    if not cores or min(cores) < 0 or len(set(cores)) != len(cores):
        raise ConfigError(f"cores must be different numbers from 0 on, got {value!r}")
    return cores


def _spans(text: str) -> Iterable[int]:
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        yield from range(int(first), int(last) + 1) if dash else (int(first),)


def _infer_method(model: object) -> str:
    if model is None:
        raise ConfigError("speculative_config needs a method or a model; methods: " + ", ".join(METHOD_KEYS))
    return "ngram" if model == "ngram" else "draft_model"


def _whole(name: str, value: object, low: int, high: int | None = None) -> None:
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or value < low
        or (high is not None and value > high)
    ):
        span = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ConfigError(f"{name} must be a whole number {span}, got {value!r}")


def _choice(name: str, value: object, valid: Iterable[object]) -> None:
    choices = list(valid)
    if value not in choices:
        raise ConfigError(f"{name} {value!r} is unknown{nearest(str(value), [str(c) for c in choices if c])}")


DEFAULT_MAX_ROWS = 64
"""Rows of one pass over a prompt: a round waits for at most one pass, so passes are kept short."""

DEFAULT_KV_BLOCKS = 1024


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """``model`` is a path or a known name. KV memory is ``num_kv_blocks`` blocks of ``block_size`` tokens.

    The draft proposes ids below ``draft_vocab`` (default 32768; 0: any), special tokens, and what occurs in the
    texts. ``quantize`` is 4 bits unless given; ``file`` keeps the file's precision. ``max_rows`` bounds a pass over
    prompts. Raises ConfigError.
    """

    model: str
    threads: int | None = None
    cores: tuple[int, ...] | None = None
    quantize: DraftQuantize | None = None
    draft_vocab: int | None = None
    block_size: int = 16
    num_kv_blocks: int = DEFAULT_KV_BLOCKS
    max_rows: int = DEFAULT_MAX_ROWS

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(f"model must be a path or a name, got {self.model!r}")
        object.__setattr__(self, "cores", parse_cores(self.cores))
        for name in ("threads", "draft_vocab", "block_size", "num_kv_blocks", "max_rows"):
            value = getattr(self, name)
            optional = value is None and name in ("threads", "draft_vocab")
            least = 0 if name == "draft_vocab" else 1
            if not optional and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.quantize not in (None, *get_args(DraftQuantize)):
            raise ConfigError(
                f"unknown quantize {self.quantize!r}{nearest(str(self.quantize), get_args(DraftQuantize))}"
            )

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> WorkerOptions:
        """Read what ``to_mapping`` wrote; ConfigError for an unknown key or a value out of range."""
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                raise ConfigError(f"unknown worker option {key!r}{nearest(str(key), known)}")
        if "model" not in values:
            raise ConfigError("a draft worker needs a model: a path or a known name")
        return cls(**values)


AUTO = "auto"


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """``budget`` is the guesses kept per sequence, or ``auto``: what is best by the measured times.

    ``fan_out_primary`` and ``fan_out_backup`` are the lists of the rule ``explicit``, F_0 first. ``saguaro_c``
    below 1 turns Saguaro sampling on (rejection rule, temperature > 0). ``top_up`` drafts an unfinished branch on
    while that is worth the wait. A speculation ends where the draft gives less than ``least_chance`` that all of it is
    accepted; 0 never. Raises ConfigError.
    """

    num_speculative_tokens: int
    fan_out: FanOutRule = "confidence"
    budget: int | str = 8
    fan_out_primary: tuple[int, ...] | None = None
    fan_out_backup: tuple[int, ...] | None = None
    backup: Backup = "auto"
    saguaro_c: float = 1.0
    top_up: bool = True
    least_chance: float = 0.5

    def __post_init__(self) -> None:
        for name in ("fan_out_primary", "fan_out_backup"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, tuple(int(v) for v in value))
        if self.fan_out not in get_args(FanOutRule):
            raise ConfigError(
                f"unknown fan_out {self.fan_out!r}{nearest(str(self.fan_out), get_args(FanOutRule))}"
            )
        if self.backup not in get_args(Backup):
            raise ConfigError(f"unknown backup {self.backup!r}{nearest(str(self.backup), get_args(Backup))}")
        budget = self.budget
        if budget != AUTO and (
            isinstance(budget, bool) or not isinstance(budget, int) or not 1 <= budget <= 256
        ):
            raise ConfigError(f"budget must be from 1 to 256, or 'auto', got {budget!r}")
        for name in ("saguaro_c", "least_chance"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must lie in [0, 1], got {getattr(self, name)!r}")
        if (self.fan_out == "explicit") != (self.fan_out_primary is not None):
            raise ConfigError(
                "fan_out 'explicit' needs fan_out_primary, a list F_0..F_K; the other rules take none"
            )

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values for a message."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SpeculationSettings:
        """Read what a client sent; ConfigError for an unknown key or a value out of range."""
        known = [f.name for f in fields(cls)]
        for key in values:
            if key not in known:
                raise ConfigError(f"unknown speculation setting {key!r}{nearest(key, known)}")
        return cls(**values)
