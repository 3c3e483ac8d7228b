"""From names and configurations to an engine with its models in memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from sonoran.backends.base import Backend
from sonoran.backends.load import free_kv_blocks, kv_blocks_in, load_backend
from sonoran.backends.placement import split_cores
from sonoran.backends.vocabulary import KnownTokens
from sonoran.config import EngineConfig, SpeculativeConfig, WorkerConfig
from sonoran.drafting.model import ModelDrafter
from sonoran.drafting.ngram import NgramDrafter
from sonoran.drafting.ssd import SsdDrafter
from sonoran.engine.core import EngineCore
from sonoran.engine.drafter import Drafter
from sonoran.models.config import ModelConfig
from sonoran.models.opening import OpenModel, Reporting, open_draft, open_with_tokenizer
from sonoran.models.tokenizer.tokenizer import Tokenizer
from sonoran.ssd.budget import LARGEST_BUDGET
from sonoran.ssd.messages import PROTOCOL_VERSION, Hello
from sonoran.worker.client import WorkerClient
from sonoran.worker.connection import Remote
from sonoran.worker.keys import load_keys
from sonoran.worker.process import Local

log = logging.getLogger(__name__)

LEAST_CONTEXT = 4096
"""Longest sequence, at least, of a model trained for so many, whatever memory is free."""

KV_SHARE = 4
"""One part in so many of the free memory may become keys and values. Pages are touched only when used."""

DEFAULT_TOKENS_PER_SEQUENCE = 512
"""KV memory unless asked for otherwise, per sequence that may run at once."""


def separate_cores(
    config: EngineConfig, speculative: SpeculativeConfig | None
) -> tuple[EngineConfig, SpeculativeConfig | None]:
    """Give target and draft worker cores of their own where the user did not place them."""
    if speculative is None or speculative.method != "ssd" or speculative.draft_address is not None:
        return config, speculative
    if config.threads is not None or speculative.threads is not None or speculative.cores is not None:
        return config, speculative
    target, draft = split_cores(config.cores)
    if not draft:
        log.warning("target and draft share all cores, so that nothing is hidden; SSD needs a second core")
        return config, speculative
    return replace(config, cores=target), replace(speculative, cores=draft)


def build_drafter(
    target: OpenModel,
    draft: OpenModel | None,
    target_blocks: int,
    config: EngineConfig,
    speculative: SpeculativeConfig | None,
    reporting: Reporting,
) -> Drafter | None:
    """Load the draft, or start or find its worker. Raises what that raises."""
    if speculative is None:
        return None
    if speculative.method == "ssd":
        return _worker_drafter(target, draft, target_blocks, config, speculative, reporting)
    if draft is None:
        return NgramDrafter(min_n=speculative.prompt_lookup_min, max_n=speculative.prompt_lookup_max)
    own_place = speculative.threads is not None or speculative.cores is not None
    loaded = load_backend(
        "draft",
        draft,
        # What fits the target fits the draft, which runs ahead of it by less than a block per sequence.
        num_blocks=target_blocks
        + config.max_num_seqs * -(-speculative.num_speculative_tokens // config.block_size),
        block_size=config.block_size,
        threads=speculative.threads if own_place else config.threads,
        cores=speculative.cores if own_place else config.cores,
        quantize=speculative.quantize,
        draft_vocab=speculative.draft_vocab,
        progress=reporting.loading(draft.file),
    )
    ours, theirs = target.tokenizer.vocab_size, draft.tokenizer.vocab_size
    # Where a target has more tokens than the draft, these are padding to the draft, if it has rows for them at all.
    backend = (
        KnownTokens(loaded.backend, theirs, draft.tokenizer.stand_in) if ours > theirs else loaded.backend
    )
    return ModelDrafter(
        backend,
        target_vocab=target.file.config.vocab_size if ours == theirs else min(ours, theirs),
        eos_ids=target.tokenizer.eos_ids,
        max_rows=config.max_num_batched_tokens,
        prefix_caching=config.enable_prefix_caching,
        vocabulary=loaded.vocabulary,
        least_chance=speculative.least_chance,
    )


def _worker_drafter(
    target: OpenModel,
    draft: OpenModel | None,
    target_blocks: int,
    config: EngineConfig,
    speculative: SpeculativeConfig,
    reporting: Reporting,
) -> Drafter:
    hello = Hello(
        PROTOCOL_VERSION,
        target.tokenizer.fingerprint(),
        target.file.config.vocab_size,
        list(target.tokenizer.eos_ids),
        speculative.settings(),
        target.tokenizer.vocab_size,
    )
    if draft is None:
        keys = load_keys(speculative.draft_key_file, "client") if speculative.draft_key_file else None
        place = Remote(str(speculative.draft_address), keys)
        client = WorkerClient(hello, place, target.tokenizer.fingerprint)
        client.start()
    else:
        own = Local(_worker_config(draft, target_blocks, config, speculative))
        client = WorkerClient(hello, own, target.tokenizer.fingerprint)
        client.start(reporting.loading(draft.file))
    return SsdDrafter(client, target_vocab=target.file.config.vocab_size)


def _worker_config(
    draft: OpenModel, target_blocks: int, config: EngineConfig, speculative: SpeculativeConfig
) -> WorkerConfig:
    k = speculative.num_speculative_tokens
    # Beside the target's tokens: the speculation, and a slot for each branch and step.
    beyond = k + LARGEST_BUDGET * k
    return WorkerConfig(
        model=str(draft.file.path),
        threads=speculative.threads,
        cores=speculative.cores,
        quantize=speculative.quantize,
        draft_vocab=speculative.draft_vocab,
        block_size=config.block_size,
        num_kv_blocks=target_blocks + config.max_num_seqs * (-(-beyond // config.block_size) + 1),
    )


@dataclass(frozen=True, slots=True)
class Models:
    """Target and drafter in memory, before they are an engine. ``max_model_len`` is in tokens."""

    target: OpenModel
    backend: Backend
    drafter: Drafter | None
    config: EngineConfig
    speculative: SpeculativeConfig | None
    max_model_len: int

    def close(self) -> None:
        """Free both."""
        self.backend.close()
        if self.drafter is not None:
            self.drafter.close()


def build_engine(
    model: str | Path,
    config: EngineConfig,
    speculative: SpeculativeConfig | None = None,
    reporting: Reporting | None = None,
) -> tuple[EngineCore, Tokenizer]:
    """Load target and draft and make an engine of them. Raises what ``load_models`` raises."""
    models = load_models(model, config, speculative, reporting)
    return make_engine(models), models.target.tokenizer


def load_models(
    model: str | Path,
    config: EngineConfig,
    speculative: SpeculativeConfig | None = None,
    reporting: Reporting | None = None,
) -> Models:
    """Load target and draft. Everything that can be wrong is checked before any weights are read.

    Raises ModelError, DownloadError, CompatibilityError, ConfigError.
    """
    reporting = reporting or Reporting()
    target = open_with_tokenizer(model, reporting)
    draft = open_draft(target, speculative.model if speculative else None, reporting)
    config, speculative = separate_cores(config, speculative)
    length, blocks = plan_memory(target.file.config, config)
    target, draft = target.for_context(length), draft.for_context(length) if draft else None
    backend = load_backend(
        "target",
        target,
        num_blocks=blocks,
        block_size=config.block_size,
        threads=config.threads,
        cores=config.cores,
        quantize=config.quantize,
        progress=reporting.loading(target.file),
    ).backend
    try:
        drafter = build_drafter(target, draft, blocks, config, speculative, reporting)
    except BaseException:
        backend.close()
        raise
    return Models(target, backend, drafter, config, speculative, length)


def with_drafter(
    models: Models, config: EngineConfig, speculative: SpeculativeConfig | None, reporting: Reporting
) -> Models:
    """Return the target that is in memory with another drafter, for an engine that never runs at the same time.

    Raises what ``load_models`` raises.
    """
    draft = open_draft(models.target, speculative.model if speculative else None, reporting)
    blocks = models.backend.num_blocks
    drafter = build_drafter(models.target, draft, blocks, config, speculative, reporting)
    return replace(models, drafter=drafter, config=config, speculative=speculative)


def make_engine(models: Models) -> EngineCore:
    """Return an idle engine over models in memory, which are its own from now on."""
    config, speculative = models.config, models.speculative
    return EngineCore(
        models.backend,
        models.target.tokenizer,
        max_model_len=models.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        seed=config.seed,
        prefix_caching=config.enable_prefix_caching,
        drafter=models.drafter,
        num_speculative_tokens=speculative.num_speculative_tokens if speculative else 0,
        verification=speculative.verification if speculative else "coupled",
    )


def plan_memory(model: ModelConfig, config: EngineConfig) -> tuple[int, int]:
    """Return the longest sequence, in tokens, and the number of KV blocks.

    Unless asked for otherwise a sequence is as long as the model was trained for, or as a share of the free memory holds.
    """
    size = config.block_size
    blocks = config.num_kv_blocks
    if config.kv_cache_bytes is not None:
        blocks = kv_blocks_in(config.kv_cache_bytes, model, size)
    length = config.max_model_len
    if length is None:
        held = blocks if blocks is not None else free_kv_blocks(model, size, KV_SHARE)
        least = LEAST_CONTEXT if blocks is None else 0
        length = min(model.max_position, max(least, held * size))
    if blocks is None:
        blocks = -(-max(length, config.max_num_seqs * DEFAULT_TOKENS_PER_SEQUENCE) // size)
    return length, blocks
