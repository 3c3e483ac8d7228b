"""What users of vLLM set: ``--additional-config '{"sonoran": {...}}'``, beside vLLM's own number of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sonoran.config import (
    MAX_KV_BYTES,
    DraftModelConfig,
    SpeculationSettings,
    SpeculativeConfig,
    reject_unknown,
)
from sonoran.errors import ConfigError, shown

SECTION = "sonoran"
WHERE = f"additional_config[{SECTION!r}]"
EXAMPLE = '{"sonoran": {"draft": "qwen2.5-coder-0.5b-instruct", "cores": "8-15"}}'


@dataclass(frozen=True, kw_only=True)
class VllmOptions:
    """``speculative`` says what drafts and how; the rest is about vLLM.

    ``temperature`` is that of most requests, by which outcomes are predicted: vLLM does not tell a proposer. None stands
    for what the model's generation_config.json says, else 1. It changes no text and no distribution.
    """

    speculative: SpeculativeConfig
    temperature: float | None = None
    kv_cache_bytes: int | None = None  # of a draft that runs here
    longest_wait_ms: float = 200.0  # for the worker in a step; then vLLM goes on without it
    log_every_s: float = 60.0  # 0: never
    trace: str | None = None  # file for Perfetto

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, 10.0),
            ("kv_cache_bytes", 1, MAX_KV_BYTES),
            ("longest_wait_ms", 1.0, 10_000.0),
            ("log_every_s", 0.0, 86_400.0),
        ):
            value = getattr(self, name)
            optional = value is None and name in ("temperature", "kv_cache_bytes")
            if not optional and (
                isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high
            ):
                raise ConfigError(f"{WHERE}: {name} must lie in {low:g} to {high:g}, got {shown(value)}")
        if self.kv_cache_bytes is not None and self.speculative.model is None:
            raise ConfigError(f"{WHERE}: kv_cache_bytes is decided where the worker was started")
        if self.trace is not None and (
            not isinstance(self.trace, str) or not Path(self.trace).expanduser().absolute().parent.is_dir()
        ):
            raise ConfigError(
                f"{WHERE}: trace must be a file in a folder that exists, got {shown(self.trace)}"
            )


_OWN = tuple(f.name for f in fields(VllmOptions) if f.name != "speculative")
_DRAFT = tuple(f.name for f in fields(DraftModelConfig) if f.name != "model")
_SETTINGS = tuple(f.name for f in fields(SpeculationSettings) if f.name != "num_speculative_tokens")
KEYS = ("draft", "draft_address", "draft_key_file", *_DRAFT, *_SETTINGS, *_OWN)


def read_options(additional: object, num_speculative_tokens: int) -> VllmOptions:
    """Read vLLM's ``additional_config``; ConfigError names the nearest key for a wrong one, and says what is missing."""
    section = additional.get(SECTION) if isinstance(additional, Mapping) else None
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"vLLM has to be told which draft to use: --additional-config '{EXAMPLE}'; got {shown(section)}"
        )
    reject_unknown(WHERE, section, KEYS)
    if (section.get("draft") is None) == (section.get("draft_address") is None):
        raise ConfigError(f"{WHERE} needs a draft, or the draft_address of a worker that has one; not both")
    own = {key: section[key] for key in section if key in _OWN}
    given: dict[str, Any] = {key: section[key] for key in section if key not in (*_OWN, "draft")}
    if section.get("draft") is not None:
        given["model"] = section["draft"]
    speculative = SpeculativeConfig.from_mapping(
        {"method": "ssd", "num_speculative_tokens": num_speculative_tokens, **given}
    )
    return VllmOptions(speculative=speculative, **own)
