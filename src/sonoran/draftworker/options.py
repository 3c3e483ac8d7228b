"""How a draft worker loads its model: one frozen value that travels as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

from sonoran.config import DraftQuantize, parse_cores
from sonoran.errors import ConfigError, nearest

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
