"""The draft model of a worker: weights and KV memory that all its clients share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sonoran.backends.base import Backend
from sonoran.backends.native import NativeBackend
from sonoran.backends.vocabulary import DraftVocabulary, make_vocabulary, restrict
from sonoran.config import WorkerOptions
from sonoran.engine.kv import KVMemory
from sonoran.models.opening import open_with_tokenizer
from sonoran.models.registry import draft_precision


@dataclass(slots=True)
class DraftModel:
    """``vocabulary`` is what the draft proposes from, None for everything; ``max_rows`` bounds a pass over prompts."""

    backend: Backend
    kv: KVMemory
    name: str
    fingerprint: str
    vocabulary: DraftVocabulary | None = None
    max_rows: int = 256

    @property
    def context_length(self) -> int:
        """Tokens of a sequence that the draft can see."""
        return min(self.backend.config.max_position, self.kv.capacity)

    def see(self, tokens: Sequence[int]) -> None:
        """Let the draft propose the tokens of a text that it drafts for."""
        if self.vocabulary is not None and self.vocabulary.add(tokens):
            restrict(self.backend, self.vocabulary)

    def close(self) -> None:
        """Free the weights."""
        self.backend.close()


def load_draft_model(
    options: WorkerOptions, progress: Callable[[int, int], None] | None = None
) -> DraftModel:
    """Find, open and load the draft. Raises ModelError, DownloadError, ConfigError."""
    opened = open_with_tokenizer(options.model)
    file, tokenizer = opened.file, opened.tokenizer
    backend = NativeBackend(
        file,
        num_blocks=options.num_kv_blocks,
        block_size=options.block_size,
        threads=options.threads,
        cores=options.cores,
        quantize=draft_precision(options.quantize, file.path),
        quantize_output=True,
        progress=progress,
    )
    return DraftModel(
        backend=backend,
        kv=KVMemory(backend),
        name=file.path.name,
        fingerprint=tokenizer.fingerprint(),
        vocabulary=make_vocabulary(backend, options.draft_vocab, tokenizer.special_ids),
        max_rows=options.max_rows,
    )
