"""The draft model of a worker: weights and KV memory that all its clients share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sonoran.backends.base import Backend
from sonoran.backends.load import load_backend
from sonoran.backends.vocabulary import DraftVocabulary
from sonoran.config import ChildConfig, WorkerConfig
from sonoran.engine.kv import KVMemory
from sonoran.models.opening import OpenModel, open_with_tokenizer
from sonoran.models.source import ModelFile, open_model, resolve_model


@dataclass(slots=True)
class DraftModel:
    """``vocabulary`` is what the draft proposes from, None for everything; ``max_rows`` bounds a pass over prompts."""

    backend: Backend
    kv: KVMemory
    name: str
    fingerprint: str
    vocabulary: DraftVocabulary | None = None
    max_rows: int = 256
    num_tokens: int = 0  # of the vocabulary, padding left out; 0: not known
    fingerprint_of: Callable[[int], str] | None = None  # of so many first tokens
    stand_in: int = 0  # token that is read in place of those that a target has more

    @property
    def context_length(self) -> int:
        """Tokens of a sequence that the draft can see."""
        return min(self.backend.config.max_position, self.kv.capacity)

    def see(self, tokens: Sequence[int]) -> None:
        """Let the draft propose the tokens of a text that it drafts for."""
        if self.vocabulary is not None:
            self.vocabulary.add(tokens)

    def close(self) -> None:
        """Free the weights."""
        self.backend.close()


@dataclass(frozen=True, slots=True)
class _Known:
    """A model whose vocabulary somebody else has read."""

    file: ModelFile
    special_ids: frozenset[int]
    stand_in: int


def load_draft_model(config: WorkerConfig, progress: Callable[[int, int], None] | None = None) -> DraftModel:
    """Find, open and load the draft. Raises ModelError, DownloadError, ConfigError."""
    model: OpenModel | _Known
    fingerprint_of: Callable[[int], str] | None = None
    if isinstance(config, ChildConfig) and config.fingerprint:
        file = open_model(resolve_model(str(config.model)))
        model = _Known(file, frozenset(config.special_ids), config.stand_in)
        fingerprint, num_tokens = config.fingerprint, config.num_tokens
    else:
        model = open_with_tokenizer(str(config.model))
        fingerprint, num_tokens = model.tokenizer.fingerprint(), model.tokenizer.vocab_size
        fingerprint_of = lru_cache(maxsize=64)(model.tokenizer.fingerprint)
    loaded = load_backend(
        "draft",
        model,
        num_blocks=config.num_kv_blocks,
        block_size=config.block_size,
        threads=config.threads,
        cores=config.cores,
        quantize=config.quantize,
        draft_vocab=config.draft_vocab,
        device=config.device,
        progress=progress,
    )
    return DraftModel(
        backend=loaded.backend,
        kv=KVMemory(loaded.backend),
        name=model.file.path.name,
        fingerprint=fingerprint,
        vocabulary=loaded.vocabulary,
        max_rows=config.max_rows,
        num_tokens=num_tokens,
        fingerprint_of=fingerprint_of,
        stand_in=model.stand_in,
    )
