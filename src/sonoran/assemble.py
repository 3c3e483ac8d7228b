"""From names and configurations to an engine with its models in memory."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from sonoran.backends.base import Backend
from sonoran.backends.load import free_kv_blocks, kv_blocks_in, load_backend
from sonoran.backends.native import LoadProgress
from sonoran.backends.placement import split_cores
from sonoran.backends.vocabulary import KnownTokens
from sonoran.config import ChildConfig, EngineConfig, SpeculativeConfig
from sonoran.drafting.copying import CopyingDrafter
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
    if config.device != "cpu" or speculative.device not in ("cpu", "torch:cpu"):
        return config, speculative  # each has all of its device
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
    progress: LoadProgress | None = None,
    client: WorkerClient | None = None,
) -> Drafter | None:
    """Load the draft, or start or find its worker, unless `client` is about to. Raises what that raises."""
    if speculative is None:
        return None
    if speculative.method == "ssd":
        client = client or worker_client(target, draft, target_blocks, config, speculative)
        client.start(progress)
        return SsdDrafter(client, target_vocab=target.file.config.vocab_size)
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
        device=speculative.device,
        progress=progress,
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


def worker_client(
    target: OpenModel,
    draft: OpenModel | None,
    target_blocks: int,
    config: EngineConfig,
    speculative: SpeculativeConfig,
    early: WorkerClient | None = None,
) -> WorkerClient:
    """Return the client of a draft worker: of one that it will start, `early` if that waits already, or, without a
    draft, of one elsewhere."""
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
        return WorkerClient(hello, Remote(str(speculative.draft_address), keys), target.tokenizer.fingerprint)
    beyond = -(-beyond_target(speculative) // config.block_size) + 1
    options = worker_config(
        target.tokenizer,
        draft,
        speculative,
        block_size=config.block_size,
        num_kv_blocks=target_blocks + config.max_num_seqs * beyond,
    )
    if early is None:
        return WorkerClient(hello, Local(options), target.tokenizer.fingerprint)
    early.brief(hello, options, target.tokenizer.fingerprint)
    return early


def _early_client(speculative: SpeculativeConfig | None) -> WorkerClient | None:
    """Start a draft worker, if one will be needed, before it is known what it serves: a new Python takes its time."""
    if speculative is None or speculative.method != "ssd" or speculative.model is None:
        return None
    client = WorkerClient(None, Local(Future()))
    client.begin()
    return client


def beyond_target(speculative: SpeculativeConfig) -> int:
    """Return the KV slots that the draft of a sequence needs beside the target's: the speculation, and one for each
    branch and step."""
    return (1 + LARGEST_BUDGET) * speculative.num_speculative_tokens


def worker_config(
    tokenizer: Tokenizer,
    draft: OpenModel,
    speculative: SpeculativeConfig,
    *,
    block_size: int,
    num_kv_blocks: int,
) -> ChildConfig:
    """Return what a draft worker of our own is told: its model, its place, its memory, and the target's vocabulary."""
    same = draft.tokenizer.fingerprint() == tokenizer.fingerprint()
    return ChildConfig(
        model=str(draft.file.path),
        threads=speculative.threads,
        cores=speculative.cores,
        quantize=speculative.quantize,
        draft_vocab=speculative.draft_vocab,
        device=speculative.device,
        block_size=block_size,
        num_kv_blocks=num_kv_blocks,
        # Of vocabularies that differ in length the worker has to tell more.
        fingerprint=draft.tokenizer.fingerprint() if same else "",
        num_tokens=draft.tokenizer.vocab_size,
        stand_in=draft.stand_in,
        special_ids=tuple(sorted(draft.special_ids)),
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
    client, backend = _early_client(speculative), None
    try:
        target = open_with_tokenizer(model, reporting)
        draft = open_draft(target, speculative.model if speculative else None, reporting)
        config, speculative = separate_cores(config, speculative)
        length, blocks = plan_memory(target.file.config, config)
        target, draft = target.for_context(length), draft.for_context(length) if draft else None
        files = [target.file] if draft is None else [target.file, draft.file]
        tell, *rest = reporting.loading_together(files)
        tell_draft = rest[0] if rest else None
        if speculative is not None and speculative.method == "ssd":
            client = worker_client(target, draft, blocks, config, speculative, client)
            client.begin()  # it loads its draft while the target is loaded here
        backend = load_backend(
            "target",
            target,
            num_blocks=blocks,
            block_size=config.block_size,
            threads=config.threads,
            cores=config.cores,
            quantize=config.quantize,
            device=config.device,
            progress=_with_worker(tell, tell_draft, client),
        ).backend
        drafter = build_drafter(target, draft, blocks, config, speculative, tell_draft, client)
    except BaseException:
        if client is not None:
            client.close()
        if backend is not None:
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
    progress = reporting.loading(draft.file) if draft is not None else None
    drafter = build_drafter(models.target, draft, blocks, config, speculative, progress)
    return replace(models, drafter=drafter, config=config, speculative=speculative)


def _with_worker(
    tell: LoadProgress | None, tell_draft: LoadProgress | None, client: WorkerClient | None
) -> LoadProgress | None:
    """Let the target's progress tell the worker's, too, which nobody waits for meanwhile."""
    if tell is None or tell_draft is None or client is None:
        return tell

    def both(done: int, total: int) -> None:
        if client.loaded is not None:
            tell_draft(*client.loaded)
        tell(done, total)

    return both


def make_engine(models: Models) -> EngineCore:
    """Return an idle engine over models in memory, which are its own from now on."""
    config, speculative, drafter = models.config, models.speculative, models.drafter
    # A draft worker copies by itself.
    if (
        drafter is not None
        and speculative is not None
        and speculative.method == "sd"
        and speculative.copy_tokens
    ):
        k = speculative.num_speculative_tokens
        drafter = CopyingDrafter(drafter, num_speculative_tokens=k, copy_tokens=speculative.copy_tokens)
    return EngineCore(
        models.backend,
        models.target.tokenizer,
        max_model_len=models.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        seed=config.seed,
        prefix_caching=config.enable_prefix_caching,
        drafter=drafter,
        num_speculative_tokens=speculative.num_speculative_tokens if speculative else 0,
        longest_speculation=speculative.longest if speculative else 0,
        verification=speculative.verification if speculative else "coupled",
    )


def plan_memory(model: ModelConfig, config: EngineConfig) -> tuple[int, int]:
    """Return the longest sequence, in tokens, and the number of KV blocks.

    Unless asked for otherwise a sequence is as long as the model was trained for, or as a share of the free memory holds.
    """
    size = config.block_size
    blocks = config.num_kv_blocks
    if config.kv_cache_bytes is not None:
        blocks = kv_blocks_in(config.kv_cache_bytes, model, size, config.device)
    length = config.max_model_len
    if length is None:
        held = blocks if blocks is not None else free_kv_blocks(model, size, KV_SHARE, config.device)
        least = LEAST_CONTEXT if blocks is None else 0
        length = min(model.max_position, max(least, held * size))
    if blocks is None:
        blocks = -(-max(length, config.max_num_seqs * DEFAULT_TOKENS_PER_SEQUENCE) // size)
    return length, blocks
