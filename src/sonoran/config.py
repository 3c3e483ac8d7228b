"""Every option of the engine, the draft and speculation: declared once, checked when it is made.

The command line builds its options from these classes, ``docs/options.md`` is written from them, and a draft worker is
sent them as they are.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any, Literal, TypeVar, get_args

from sonoran.errors import ConfigError, nearest, shown

Method = Literal["sd", "ngram", "ssd", "auto"]
Mode = Literal["auto", "ar", "sd", "ssd", "ngram"]
"""What the command line calls a method; ``ar`` is decoding without any."""

ALIASES = {"draft_model": "sd"}
"""vLLM's word for synchronous speculation with a model."""

Verification = Literal["coupled", "rejection"]
Law = Literal["coupled", "rejection", "point_mass"]
"""By what a draft predicts verifications: a rule of ours, or that of an engine which draws by noise of its own and takes
every proposal for certain (vLLM): token x is accepted with p(x), otherwise drawn from the others."""

FanOutRule = Literal["confidence", "uniform", "geometric", "measured", "explicit"]
Backup = Literal["auto", "draft", "ngram", "random", "none"]
AUTO: Literal["auto"] = "auto"

Quantize = Literal["file", "bf16", "int8", "int4"]
Precision = Literal["bf16", "int8", "int4", "int3"]
"""To what weights are lowered on load; ``int3`` is 3 bits for the feed-forward matrices and 4 for the others."""

DraftQuantize = Literal["file", "bf16", "int8", "int4", "int3"]

DEVICES = ("cpu", "cuda", "cuda:1", "mps", "torch:cpu")
"""Where a model may run: ``cpu`` is the backend of our own, the others are PyTorch's; any number may follow ``cuda:``."""

MAX_SPECULATIVE_TOKENS = 64
AUTO_SPECULATIVE_TOKENS = 8
"""Method auto chooses K for each round, up to this unless asked for otherwise."""

MAX_BUDGET = 256
DEFAULT_DRAFT_VOCAB = 32768
"""Ids below which the draft proposes anything; 0 stands for the whole vocabulary."""

MAX_MODEL_LEN = 2**24
MAX_NUM_SEQS = 1024
MAX_BATCHED_TOKENS = 2**16
MAX_KV_BYTES = 2**46
MAX_KV_BLOCKS = 2**24
MAX_BLOCK_SIZE = 4096
MAX_THREADS = 1024
MAX_CORE = 8191
"""Largest values of options: beyond what a machine has, and small enough to calculate with."""

Panel = Literal["Sampling", "Draft", "SSD", "Machine"]
C = TypeVar("C")


def option(
    default: Any,
    panel: Panel,
    help: str,
    *,
    flags: tuple[str, ...] | None = None,
    methods: tuple[Method, ...] = (),
) -> Any:
    """Declare a field that users set: where ``--help`` shows it, in which words, and under which names.

    ``flags`` are its names on the command line, the long one first (default: the field's own name; an empty tuple:
    none); ``methods`` those that it has a meaning for (default: all).
    """
    metadata = {"panel": panel, "help": help, "flags": flags, "methods": methods}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How much the engine may hold and do at once. Lengths are in tokens."""

    max_model_len: int | None = option(
        None,
        "Machine",
        "Tokens of prompt and output together; default: what the model was trained for, within a quarter of free memory.",
    )
    max_num_seqs: int = option(16, "Machine", "Sequences decoded at once.", flags=())
    max_num_batched_tokens: int = option(256, "Machine", "Rows of one forward pass.")
    kv_cache_bytes: int | None = option(None, "Machine", "Bytes of KV memory of the target.")
    num_kv_blocks: int | None = option(None, "Machine", "The same as a number of blocks.")
    block_size: int = option(16, "Machine", "Tokens of a KV block.")
    threads: int | None = option(None, "Machine", "Threads; default: all cores.")
    cores: tuple[int, ...] | None = option(None, "Machine", "Pin threads to these cores: 0,2-5.")
    device: str = option(
        "cpu",
        "Machine",
        "Where the target runs: cpu, or through PyTorch cuda, cuda:1, mps or torch:cpu; no GPU has been tried yet.",
    )
    quantize: Quantize | None = option(
        None, "Machine", "Lower precision of the target; through PyTorch bf16, or file for fp32."
    )
    seed: int | None = option(
        None, "Machine", "Makes the seeds of requests without one repeatable.", flags=()
    )
    enable_prefix_caching: bool = option(
        True, "Machine", "Keep the KV memory of prompts for later ones.", flags=()
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "cores", parse_cores(self.cores))
        for name, limit in (
            ("max_model_len", MAX_MODEL_LEN),
            ("kv_cache_bytes", MAX_KV_BYTES),
            ("num_kv_blocks", MAX_KV_BLOCKS),
            ("threads", MAX_THREADS),
        ):
            if getattr(self, name) is not None:
                _whole(self, name, 1, limit)
        _whole(self, "max_num_seqs", 1, MAX_NUM_SEQS)
        _whole(self, "max_num_batched_tokens", 1, MAX_BATCHED_TOKENS)
        _whole(self, "block_size", 1, MAX_BLOCK_SIZE)
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
            _whole(self, "seed", 0, 2**64 - 1)
        _choice("quantize", self.quantize, (*get_args(Quantize), None))
        _check_device(self)


_MODEL_METHODS: tuple[Method, ...] = ("sd", "ssd", "auto")


@dataclass(frozen=True, kw_only=True)
class DraftModelConfig:
    """Which model drafts, and how it is loaded."""

    model: str | None = option(
        None,
        "Draft",
        "What drafts: auto (one of the target's family), ngram, none, or a model.",
        flags=("--draft", "-d"),
        methods=_MODEL_METHODS,
    )
    threads: int | None = option(
        None, "Draft", "Threads of the draft.", flags=("--draft-threads",), methods=("sd", "ssd")
    )
    cores: tuple[int, ...] | None = option(
        None, "Draft", "Cores of the draft.", flags=("--draft-cores",), methods=("sd", "ssd")
    )
    device: str = option(
        "cpu",
        "Draft",
        "Where the draft runs, see --device.",
        flags=("--draft-device",),
        methods=("sd", "ssd"),
    )
    quantize: DraftQuantize | None = option(
        None,
        "Draft",
        "Precision of the draft: file (as it is), bf16, int8, int4 or int3; default: int4, int3 for some known drafts.",
        flags=("--draft-quantize",),
        methods=_MODEL_METHODS,
    )
    draft_vocab: int | None = option(
        None,
        "Draft",
        f"Draft only ids below this, special tokens and what occurs in the texts; default {DEFAULT_DRAFT_VOCAB}, "
        "0 for all.",
        methods=_MODEL_METHODS,
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "cores", parse_cores(self.cores))
        if self.model is not None and (not isinstance(self.model, str) or not self.model):
            raise ConfigError(f"model must be a path or a name, got {self.model!r}")
        for name, least, limit in (("draft_vocab", 0, 2**31 - 1), ("threads", 1, MAX_THREADS)):
            if getattr(self, name) is not None:
                _whole(self, name, least, limit)
        _choice("quantize", self.quantize, (*get_args(DraftQuantize), None))
        _check_device(self)


@dataclass(frozen=True, kw_only=True)
class SpeculationSettings:
    """How much is drafted and, by a draft worker, guessed; it travels to the worker as it is."""

    num_speculative_tokens: int = option(
        4,
        "Draft",
        f"Most tokens drafted for each verification (K); default 4, in mode auto {AUTO_SPECULATIVE_TOKENS}.",
        flags=("--num-speculative-tokens", "-k"),
    )
    least_chance: float = option(
        0.5,
        "Draft",
        "End a draft where it is less likely than this to be accepted whole; 0 never.",
        methods=("sd", "ssd"),
    )
    copy_tokens: int = option(
        0,
        "Draft",
        "Most tokens copied at once from what the text repeats, where that promises more than a draft; 0 never.",
        methods=("sd", "ssd", "auto"),
    )
    fan_out: FanOutRule = option(
        "confidence",
        "SSD",
        "How guesses are shared out: confidence, measured, uniform, geometric, or (explicit) a list F_0,..,F_K such "
        "as 3,2,1,1,4.",
        methods=("ssd",),
    )
    fan_out_primary: tuple[int, ...] | None = option(
        None, "SSD", "The list of the rule explicit, F_0 first.", flags=(), methods=("ssd",)
    )
    fan_out_backup: tuple[int, ...] | None = option(
        None, "SSD", "Another list after a backup speculation; default: the same.", methods=("ssd",)
    )
    budget: int | str = option(
        AUTO,
        "SSD",
        "Outcomes guessed per sequence and round (B); auto: as many as are worth their time.",
        methods=("ssd",),
    )
    backup: Backup = option("auto", "SSD", "What drafts on a miss.", methods=("ssd",))
    saguaro_c: float = option(1.0, "SSD", "C of Saguaro sampling, 0 to 1; 1 is off.", methods=("ssd",))
    top_up: bool = option(
        True, "SSD", "Draft an unfinished branch on while that is worth the wait.", methods=("ssd",)
    )

    def __post_init__(self) -> None:
        _whole(self, "num_speculative_tokens", 0, MAX_SPECULATIVE_TOKENS)
        _whole(self, "copy_tokens", 0, MAX_SPECULATIVE_TOKENS)
        for name in ("saguaro_c", "least_chance"):
            _share(name, getattr(self, name))
        _choice("fan_out", self.fan_out, get_args(FanOutRule))
        _choice("backup", self.backup, get_args(Backup))
        _choice("top_up", self.top_up, (True, False))
        if self.budget != AUTO:
            _whole(self, "budget", 1, MAX_BUDGET, " or 'auto'")
        for name in ("fan_out_primary", "fan_out_backup"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _fan_out_list(name, getattr(self, name)))
        if (self.fan_out == "explicit") != (self.fan_out_primary is not None):
            raise ConfigError(
                "fan_out 'explicit' needs fan_out_primary, a list F_0..F_K; the other rules take none"
            )
        if self.fan_out_backup is not None and self.fan_out_primary is None:
            raise ConfigError("fan_out_backup needs fan_out_primary beside it")

    def settings(self) -> SpeculationSettings:
        """Return just these fields, of a configuration that has more."""
        return SpeculationSettings(**{f.name: getattr(self, f.name) for f in fields(SpeculationSettings)})


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig(SpeculationSettings, DraftModelConfig):
    """What drafts, how much, and which rule verifies; the names are vLLM's where it has one.

    Method ``auto`` without a model speculates where a draft of the target's family is known, and decodes
    autoregressively, saying why, where none is.
    """

    method: Method = field(
        kw_only=False,
        metadata={"flags": ("--mode",), "help": "What drafts, and when; default: what fits the model."},
    )
    prompt_lookup_min: int = option(
        2, "Draft", "Fewest tokens that must occur before, for ngram.", methods=("ngram",)
    )
    prompt_lookup_max: int = option(
        5, "Draft", "Most tokens that are compared, for ngram.", methods=("ngram",)
    )
    verification: Verification = option(
        "coupled", "Sampling", "Rule: coupled, or rejection as in the papers."
    )
    draft_address: str | None = option(
        None, "SSD", "A worker that runs already, tcp://HOST:PORT.", methods=("ssd",)
    )
    draft_key_file: str | None = option(
        None, "SSD", "client.key for the worker at --draft-address.", methods=("ssd",)
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", ALIASES.get(str(self.method), self.method))
        _choice("method", self.method, get_args(Method))
        DraftModelConfig.__post_init__(self)
        SpeculationSettings.__post_init__(self)
        _choice("verification", self.verification, get_args(Verification))
        _whole(self, "prompt_lookup_min", 1, MAX_MODEL_LEN)
        _whole(self, "prompt_lookup_max", 1, MAX_MODEL_LEN)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min ({self.prompt_lookup_min}) exceeds prompt_lookup_max "
                f"({self.prompt_lookup_max})"
            )
        if self.method == "sd" and not self.model:
            raise ConfigError("method 'sd' needs a model: a path, a name, or 'auto'")
        if self.method == "ssd":
            self._check_worker()

    def _check_worker(self) -> None:
        """Either a model for a worker of our own, or the address of one that runs already."""
        if (self.model is None) == (self.draft_address is None):
            raise ConfigError("method 'ssd' needs a model, or the draft_address of a worker that has one")
        if self.draft_key_file is not None and self.draft_address is None:
            raise ConfigError("draft_key_file is for a worker elsewhere; it needs a draft_address")
        for name in ("draft_vocab", "threads", "cores", "quantize", "device"):
            if self.draft_address is not None and getattr(self, name) not in (None, "cpu"):
                raise ConfigError(f"{name} is decided where the worker at {self.draft_address} was started")

    @property
    def longest(self) -> int:
        """Most tokens of a speculation, drafted or copied; ngram copies K, and without drafts are no copies."""
        k = self.num_speculative_tokens
        return max(k, self.copy_tokens) if k and self.method != "ngram" else k

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any] | SpeculativeConfig) -> SpeculativeConfig:
        """Check a dictionary with vLLM's key names. The method follows from the model when it is omitted;
        ``draft_cores`` is another name of ``cores``.

        Raises ConfigError for an unknown key (naming the nearest), for a key of another method, and for
        values out of range.
        """
        if isinstance(given, SpeculativeConfig):
            return given
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"speculative_config must be a dictionary such as {{'method': 'ssd', 'model': ...}}, got {shown(given)}"
            )
        values = dict(given)
        if "draft_cores" in values:
            if "cores" in values:
                raise ConfigError("speculative_config has both cores and draft_cores; they are the same")
            values["cores"] = values.pop("draft_cores")
        reject_unknown("speculative_config", values, (f.name for f in fields(cls)))
        method = values["method"] = method_named(values.get("method") or _infer_method(values.get("model")))
        if method == "ngram" and values.get("model") == "ngram":
            del values["model"]
        if method == "auto":
            values.setdefault("num_speculative_tokens", AUTO_SPECULATIVE_TOKENS)
        for f in fields(cls):
            methods = f.metadata.get("methods")
            if methods and f.name in values and method not in methods:
                raise ConfigError(
                    f"speculative_config key {f.name!r} belongs to method {', '.join(map(repr, methods))}, "
                    f"not to {method!r}"
                )
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(DraftModelConfig):
    """The model of a draft worker, and what it may hold. ``max_rows`` bounds a pass over prompts: a round waits for at
    most one pass, so passes are kept short."""

    block_size: int = option(16, "Machine", "Tokens of a KV block.")
    num_kv_blocks: int = option(1024, "Machine", "KV memory of all clients, in blocks.")
    max_rows: int = option(64, "Machine", "Rows of one pass over a prompt; a reply waits for one pass.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is None:
            raise ConfigError("a draft worker needs a model: a path or a known name")
        _whole(self, "block_size", 1, MAX_BLOCK_SIZE)
        _whole(self, "num_kv_blocks", 1, MAX_KV_BLOCKS)
        _whole(self, "max_rows", 1, MAX_BATCHED_TOKENS)


@dataclass(frozen=True, kw_only=True)
class ChildConfig(WorkerConfig):
    """A worker that an engine starts, which has read the draft's vocabulary already: to do it again would take long."""

    fingerprint: str = ""  # empty: it has to read it itself
    num_tokens: int = 0
    stand_in: int = 0
    special_ids: tuple[int, ...] = ()


def check_length(num_tokens: int) -> None:
    """Raise ConfigError for a speculation that is longer than any may be."""
    if num_tokens > MAX_SPECULATIVE_TOKENS:
        raise ConfigError(f"a speculation has at most {MAX_SPECULATIVE_TOKENS} tokens, not {num_tokens}")


def method_named(name: object) -> Method:
    """Return the method of that name, which may be an alias. Raises ConfigError naming the nearest."""
    found = ALIASES.get(str(name), name)
    for method in get_args(Method):
        if found == method:
            return method  # type: ignore[no-any-return]
    raise ConfigError(f"method {name!r} is unknown{nearest(str(name), (*get_args(Method), *ALIASES))}")


def speculation_of(given: Mapping[str, Any] | SpeculativeConfig | bool | None) -> SpeculativeConfig | None:
    """Return what speculates, None for AR: ``None`` asks for nothing, which is the fastest exact mode (method ``auto``
    with the draft that is known for the target, if any); ``False`` or ``{"method": "ar"}`` asks for AR.

    Raises ConfigError.
    """
    if given is None:
        return SpeculativeConfig.from_mapping({"method": "auto"})
    if given is False:
        return None
    if isinstance(given, Mapping) and given.get("method") == "ar":
        reject_unknown("speculative_config (of method 'ar')", given, ("method",))
        return None
    return SpeculativeConfig.from_mapping(given)  # type: ignore[arg-type]  # which refuses True, too


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
        cores = tuple(_spans(value)) if isinstance(value, str) else tuple(map(operator.index, value))
    except (TypeError, ValueError):
        raise ConfigError(f"cores must look like '0,2-5', got {shown(value)}") from None
    if not cores or min(cores) < 0 or max(cores) > MAX_CORE or len(set(cores)) != len(cores):
        raise ConfigError(f"cores must be different numbers from 0 to {MAX_CORE}, got {shown(value)}")
    return cores


def _spans(text: str) -> Iterable[int]:
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        # One beyond the limit is enough to be refused for.
        end = min(int(last), MAX_CORE + 1) if dash else int(first)
        yield from range(int(first), end + 1)


def _infer_method(model: object) -> str:
    if model is None:
        raise ConfigError(
            f"speculative_config needs a method or a model; methods: {', '.join(get_args(Method))}"
        )
    return "ngram" if model == "ngram" else "sd"


def _fan_out_list(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(f"{name} must be a list F_0..F_K of whole numbers, got {shown(value)}")
    numbers = tuple(value)
    if not numbers:
        raise ConfigError(f"{name} must be a list F_0..F_K of whole numbers, got an empty one")
    return tuple(_as_whole(name, number, 0, MAX_BUDGET) for number in numbers)


def _check_device(config: EngineConfig | DraftModelConfig) -> None:
    """Check the name of a device, and that nothing was asked for that only the backend of our own has."""
    device = config.device
    number = device.removeprefix("cuda:") if isinstance(device, str) else ""
    if device not in DEVICES and not (device == f"cuda:{number}" and number.isdecimal() and len(number) < 4):
        raise ConfigError(f"device {shown(device)} is unknown{nearest(str(device), DEVICES)}")
    if device == "cpu":
        return
    if config.quantize not in (None, "file", "bf16"):
        raise ConfigError(
            f"quantize {config.quantize!r} is of device cpu; on {device} weights are bf16, or fp32 with quantize 'file'"
        )
    on_cpu = device == "torch:cpu"
    if config.cores is not None and not (on_cpu and isinstance(config, DraftModelConfig)):
        raise ConfigError(f"cores place threads of device cpu and have no effect on {device}; leave them out")
    if config.threads is not None and not on_cpu:
        raise ConfigError(f"threads are of device cpu and have no effect on {device}; leave them out")


def _share(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} must lie in [0, 1], got {shown(value)}")


def _whole(config: object, name: str, low: int, high: int, otherwise: str = "") -> None:
    """Check a field of a configuration; a whole number of NumPy becomes one of Python."""
    value = getattr(config, name)
    whole = _as_whole(name, value, low, high, otherwise)
    if whole is not value:
        object.__setattr__(config, name, whole)


def _as_whole(name: str, value: object, low: int, high: int, otherwise: str = "") -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or not low <= int(value) <= high:
        raise ConfigError(
            f"{name} must be a whole number from {low} to {high}{otherwise}, got {shown(value)}"
        )
    return int(value)


def _choice(name: str, value: object, valid: Iterable[object]) -> None:
    choices = list(valid)
    if value not in choices:
        raise ConfigError(f"{name} {value!r} is unknown{nearest(str(value), [str(c) for c in choices if c])}")
