"""From names and configurations to an engine with its models in memory."""

from __future__ import annotations

from pathlib import Path

from sonoran.backends.native import NativeBackend, kv_bytes_per_block
from sonoran.config import EngineConfig, SpeculativeConfig
from sonoran.engine.core import EngineCore
from sonoran.engine.drafter_loading import build_drafter, separate_cores, worker_settings
from sonoran.engine.opening import Reporting, open_draft, open_with_tokenizer
from sonoran.errors import ConfigError
from sonoran.tokenization.tokenizer import Tokenizer
from sonoran.weights.config import ModelConfig

DEFAULT_CONTEXT = 4096
"""Longest sequence unless asked for otherwise; models trained for more would take much memory."""

DEFAULT_TOKENS_PER_SEQUENCE = 512
"""KV memory unless asked for otherwise, per sequence that may run at once."""


def build_engine(
    model: str | Path,
    config: EngineConfig,
    speculative: SpeculativeConfig | None = None,
    reporting: Reporting | None = None,
) -> tuple[EngineCore, Tokenizer]:
    """Load target and draft. Everything that can be wrong is checked before any weights are read.

    Raises ModelError, DownloadError, CompatibilityError, ConfigError.
    """
    if speculative is not None and speculative.method == "auto":
        # What is fastest is known above the engine; this is the only place that reaches up there.
        from sonoran.calibrate.auto import build_auto

        return build_auto(model, config, speculative, reporting)
    reporting = reporting or Reporting()
    if speculative is not None and speculative.method == "ssd":
        worker_settings(speculative)
    target = open_with_tokenizer(model, reporting)
    draft = open_draft(target, speculative, reporting)
    config, speculative = separate_cores(config, speculative)
    length, blocks = plan_memory(target.file.config, config)
    backend = NativeBackend(
        target.file,
        num_blocks=blocks,
        block_size=config.block_size,
        threads=config.threads,
        cores=config.cores,
        quantize=config.quantize,
        progress=reporting.loading(target.file),
    )
    try:
        drafter = build_drafter(target, draft, blocks, config, speculative, reporting)
    except BaseException:
        backend.close()
        raise
    core = EngineCore(
        backend,
        target.tokenizer,
        max_model_len=length,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        seed=config.seed,
        prefix_caching=config.enable_prefix_caching,
        drafter=drafter,
        num_speculative_tokens=speculative.num_speculative_tokens if speculative else 0,
        verification=speculative.verification if speculative else "coupled",
    )
    return core, target.tokenizer


def plan_memory(model: ModelConfig, config: EngineConfig) -> tuple[int, int]:
    """Return the longest sequence, in tokens, and the number of KV blocks."""
    size = config.block_size
    blocks = config.num_kv_blocks
    if config.kv_cache_bytes is not None:
        per_block = kv_bytes_per_block(model, size)
        blocks = config.kv_cache_bytes // per_block
        if blocks < 1:
            raise ConfigError(
                f"kv_cache_bytes is {config.kv_cache_bytes}, but one block of {size} tokens takes {per_block}"
            )
    length = config.max_model_len
    if length is None:
        length = min(model.max_position, DEFAULT_CONTEXT)
        if blocks is not None:
            length = min(length, blocks * size)
    if blocks is None:
        blocks = -(-max(length, config.max_num_seqs * DEFAULT_TOKENS_PER_SEQUENCE) // size)
    return length, blocks
