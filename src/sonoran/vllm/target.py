"""The target as vLLM has it: what a draft worker has to know of it, and whether a draft fits."""

from __future__ import annotations

import json
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sonoran.assemble import KV_SHARE, beyond_target, worker_config
from sonoran.backends.load import free_kv_blocks, kv_blocks_in
from sonoran.config import ChildConfig, SpeculativeConfig
from sonoran.errors import ConfigError, SonoranError
from sonoran.models.families import family_draft
from sonoran.models.opening import OpenModel, open_with_tokenizer
from sonoran.models.tokenizer.compatibility import require_compatible
from sonoran.models.tokenizer.tokenizer import Tokenizer
from sonoran.ssd.messages import PROTOCOL_VERSION, Hello
from sonoran.vllm.options import WHERE, VllmOptions
from sonoran.worker.client import WorkerClient
from sonoran.worker.connection import Remote
from sonoran.worker.keys import load_keys
from sonoran.worker.process import Local

log = logging.getLogger(__name__)

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Target:
    """Facts of vLLM's target. ``vocab_size`` are its output rows, lengths are in tokens."""

    name: str
    architecture: str  # as config.json calls it
    tokenizer: Tokenizer
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    shares_cores: bool  # it runs on processors of this machine
    temperature: float  # of requests that do not say


def describe_target(vllm_config: Any) -> Target:
    """Read vLLM's configuration. Raises ModelError when the target has no tokenizer that we know."""
    model = vllm_config.model_config
    defaults = model.get_diff_sampling_param()
    return Target(
        name=str(model.model),
        architecture=str(model.hf_text_config.model_type),
        tokenizer=_tokenizer(model),
        vocab_size=int(model.get_vocab_size()),
        max_model_len=int(model.max_model_len),
        max_num_seqs=int(vllm_config.scheduler_config.max_num_seqs),
        shares_cores=vllm_config.device_config.device_type == "cpu",
        temperature=float(defaults.get("temperature", 1.0)),
    )


def _tokenizer(model: Any) -> Tokenizer:
    """Open the target's tokenizer.json, or have vLLM write the one that it made of other files."""
    folder = Path(str(model.tokenizer))
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.from_directory(folder)
    from vllm.tokenizers import cached_tokenizer_from_config

    with tempfile.TemporaryDirectory(prefix="sonoran-tokenizer-") as written:
        cached_tokenizer_from_config(model).save_pretrained(written)
        ends = (model.try_get_generation_config() or {}).get("eos_token_id")
        if ends is not None:
            Path(written, "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        return Tokenizer.from_directory(written)


def make_client(target: Target, options: VllmOptions) -> WorkerClient:
    """Return the client of the worker that the options name, not yet started.

    Raises CompatibilityError for a draft that does not fit, ConfigError, ModelError, DownloadError.
    """
    speculative = options.speculative
    hello = Hello(
        PROTOCOL_VERSION,
        target.tokenizer.fingerprint(),
        target.vocab_size,
        list(target.tokenizer.eos_ids),
        speculative.settings(),
        target.tokenizer.vocab_size,
    )
    place: Remote | Local
    if speculative.draft_address is not None:
        keys = load_keys(speculative.draft_key_file, "client") if speculative.draft_key_file else None
        place = Remote(speculative.draft_address, keys)
    else:
        if target.shares_cores and speculative.cores is None:
            raise ConfigError(
                f"vLLM computes on this machine's processors: name those of the draft, {WHERE} cores such as "
                '"7", and leave them out of VLLM_CPU_OMP_THREADS_BIND'
            )
        place = Local(_worker_config(target, speculative, options.kv_cache_bytes))
    longest = 1e-3 * options.longest_wait_ms
    return WorkerClient(hello, place, target.tokenizer.fingerprint, longest_wait_s=longest)


def _worker_config(target: Target, speculative: SpeculativeConfig, kv_cache_bytes: int | None) -> ChildConfig:
    draft = _open_draft(target, str(speculative.model))
    if kv_cache_bytes is not None:
        blocks = kv_blocks_in(kv_cache_bytes, draft.file.config, BLOCK_SIZE)
    else:  # pages are touched only when used
        longest = min(target.max_model_len, draft.file.config.max_position) + beyond_target(speculative)
        wanted = target.max_num_seqs * (-(-longest // BLOCK_SIZE) + 1)
        blocks = max(1, min(wanted, free_kv_blocks(draft.file.config, BLOCK_SIZE, KV_SHARE)))
    return worker_config(target.tokenizer, draft, speculative, block_size=BLOCK_SIZE, num_kv_blocks=blocks)


def _open_draft(target: Target, name: str) -> OpenModel:
    if name == "auto":
        known = family_draft(
            target.architecture.removesuffix("_text").replace("_", ""),
            target.tokenizer.token_strings(),
            float("inf"),
        )
        if known is None:
            raise ConfigError(
                f"no draft is known for {target.name} ({target.architecture}, {target.tokenizer.vocab_size} "
                f"tokens): name a smaller model of its family, {WHERE} draft"
            )
        name = known
    draft = open_with_tokenizer(name)
    try:
        require_compatible(target.tokenizer, draft.tokenizer)
    except SonoranError as error:
        raise type(error)(f"{target.name} with the draft {name}: {error}") from None
    return draft
