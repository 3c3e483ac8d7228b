"""From a speculative configuration to a drafter that is ready."""

from __future__ import annotations

import logging
from dataclasses import replace

from sonoran.backends.native import NativeBackend
from sonoran.backends.placement import split_cores
from sonoran.config import EngineConfig, SpeculativeConfig
from sonoran.draftworker.client import WorkerClient
from sonoran.draftworker.keeper import Local
from sonoran.draftworker.keys import load_keys
from sonoran.draftworker.link import Remote
from sonoran.draftworker.messages import PROTOCOL_VERSION, Hello
from sonoran.draftworker.options import WorkerOptions
from sonoran.draftworker.precision import draft_precision
from sonoran.draftworker.settings import SpeculationSettings
from sonoran.draftworker.spending import LARGEST_BUDGET
from sonoran.draftworker.vocabulary import make_vocabulary
from sonoran.engine.drafters.base import Drafter
from sonoran.engine.drafters.model import ModelDrafter
from sonoran.engine.drafters.ngram import NgramProposer
from sonoran.engine.drafters.ssd import SsdDrafter
from sonoran.engine.opening import OpenModel, Reporting

log = logging.getLogger(__name__)


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
        quantize=draft_precision(speculative.quantize, draft.file.path),
        quantize_output=True,
        progress=reporting.loading(draft.file),
    )
    return ModelDrafter(
        backend,
        target_vocab=target.file.config.vocab_size,
        eos_ids=target.tokenizer.eos_ids,
        max_rows=config.max_num_batched_tokens,
        prefix_caching=config.enable_prefix_caching,
        vocabulary=make_vocabulary(backend, speculative.draft_vocab, draft.tokenizer.special_ids),
        least_chance=speculative.least_chance,
    )


def worker_settings(speculative: SpeculativeConfig) -> SpeculationSettings:
    """Return what a worker is told of how to speculate. Raises ConfigError for values that make no sense."""
    return SpeculationSettings(
        num_speculative_tokens=speculative.num_speculative_tokens,
        fan_out=speculative.fan_out,  # type: ignore[arg-type]  # checked there
        budget=speculative.budget,
        fan_out_primary=speculative.fan_out_primary,
        fan_out_backup=speculative.fan_out_backup,
        backup=speculative.backup,  # type: ignore[arg-type]  # checked there
        saguaro_c=speculative.saguaro_c,
        top_up=speculative.top_up,
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
        worker_settings(speculative).to_mapping(),
    )
    if draft is None:
        keys = load_keys(speculative.draft_key_file, "client") if speculative.draft_key_file else None
        client = WorkerClient(hello, Remote(str(speculative.draft_address), keys))
        client.start()
    else:
        client = WorkerClient(hello, Local(_worker_options(draft, target_blocks, config, speculative)))
        client.start(reporting.loading(draft.file))
    return SsdDrafter(client, target_vocab=target.file.config.vocab_size)


def _worker_options(
    draft: OpenModel, target_blocks: int, config: EngineConfig, speculative: SpeculativeConfig
) -> dict[str, object]:
    k = speculative.num_speculative_tokens
    # Beside the target's tokens: the speculation, and a slot for each branch and step.
    beyond = k + LARGEST_BUDGET * k
    options = WorkerOptions(
        model=str(draft.file.path),
        threads=speculative.threads,
        cores=speculative.cores,
        quantize=speculative.quantize,
        draft_vocab=speculative.draft_vocab,
        block_size=config.block_size,
        num_kv_blocks=target_blocks + config.max_num_seqs * (-(-beyond // config.block_size) + 1),
    )
    return options.to_mapping()
