"""From names and configurations to an engine with its models in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sonoran.backends.native import NativeBackend, kv_bytes_per_block
from sonoran.config import EngineConfig, SpeculativeConfig
from sonoran.engine.core import EngineCore
from sonoran.engine.drafters.base import Drafter
from sonoran.engine.drafters.model import ModelDrafter
from sonoran.engine.drafters.ngram import NgramProposer
from sonoran.errors import ConfigError
from sonoran.tokenization.compatibility import require_compatible
from sonoran.tokenization.tokenizer import Tokenizer
from sonoran.weights.config import ModelConfig
from sonoran.weights.download import Progress
from sonoran.weights.registry import DEFAULT_DRAFT
from sonoran.weights.source import ModelFile, open_model, resolve_model

DEFAULT_CONTEXT = 4096
"""Longest sequence unless asked for otherwise; models trained for more would take much memory."""

DEFAULT_TOKENS_PER_SEQUENCE = 512
"""KV memory unless asked for otherwise, per sequence that may run at once."""

LoadProgress = Callable[[str, int, int], None]
"""Called with the file's name, the bytes loaded so far and the bytes in all."""


@dataclass(frozen=True, slots=True)
class Reporting:
    """Where long work is reported."""

    pull: Progress | None = None
    load: LoadProgress | None = None

    def loading(self, file: ModelFile) -> Callable[[int, int], None] | None:
        """Return the callback for one file."""
        if self.load is None:
            return None
        report, name = self.load, file.path.name
        return lambda done, total: report(name, done, total)


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model file and its tokenizer; the weights are not read yet."""

    file: ModelFile
    tokenizer: Tokenizer


def open_with_tokenizer(model: str | Path, reporting: Reporting | None = None) -> OpenModel:
    """Find (if need be fetch) a model and open it with its tokenizer. Raises ModelError, DownloadError."""
    file = open_model(resolve_model(model, progress=reporting.pull if reporting else None))
    if file.directory is not None:
        return OpenModel(file, Tokenizer.from_directory(file.directory))
    return OpenModel(file, Tokenizer.from_gguf(file.metadata))


def build_engine(
    model: str | Path,
    config: EngineConfig,
    speculative: SpeculativeConfig | None = None,
    reporting: Reporting | None = None,
) -> tuple[EngineCore, Tokenizer]:
    """Load target and draft. Everything that can be wrong is checked before any weights are read.

    Raises ModelError, DownloadError, CompatibilityError, ConfigError.
    """
    reporting = reporting or Reporting()
    target = open_with_tokenizer(model, reporting)
    draft = _open_draft(target, speculative, reporting)
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
    core = EngineCore(
        backend,
        target.tokenizer,
        max_model_len=length,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        seed=config.seed,
        prefix_caching=config.enable_prefix_caching,
        drafter=_build_drafter(target, draft, blocks, config, speculative, reporting),
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


def _open_draft(
    target: OpenModel, speculative: SpeculativeConfig | None, reporting: Reporting
) -> OpenModel | None:
    if speculative is None or speculative.method != "draft_model":
        return None
    name = DEFAULT_DRAFT if speculative.model == "auto" else speculative.model
    draft = open_with_tokenizer(name or "", reporting)
    require_compatible(target.tokenizer, draft.tokenizer)
    return draft


def _build_drafter(
    target: OpenModel,
    draft: OpenModel | None,
    target_blocks: int,
    config: EngineConfig,
    speculative: SpeculativeConfig | None,
    reporting: Reporting,
) -> Drafter | None:
    if speculative is None:
        return None
    if draft is None:
        return NgramProposer(min_n=speculative.prompt_lookup_min, max_n=speculative.prompt_lookup_max)
    own_place = speculative.threads is not None or speculative.cores is not None
    backend = NativeBackend(
        draft.file,
        # What fits the target fits the draft, which runs ahead of it by less than a block per sequence.
        num_blocks=target_blocks
        + config.max_num_seqs * -(-speculative.num_speculative_tokens // config.block_size),
        block_size=config.block_size,
        threads=speculative.threads if own_place else config.threads,
        cores=speculative.cores if own_place else config.cores,
        quantize=speculative.quantize,
        progress=reporting.loading(draft.file),
    )
    if speculative.draft_vocab is not None:
        ids = range(min(speculative.draft_vocab, backend.config.vocab_size))
        special = {token for token in draft.tokenizer.special_ids if token < backend.config.vocab_size}
        backend.restrict_output(sorted(special.union(ids)))
    return ModelDrafter(
        backend,
        target_vocab=target.file.config.vocab_size,
        eos_ids=target.tokenizer.eos_ids,
        max_rows=config.max_num_batched_tokens,
        prefix_caching=config.enable_prefix_caching,
    )
