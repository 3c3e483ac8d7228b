"""From options to a draft model in memory."""

from __future__ import annotations

from collections.abc import Callable

from sonoran.backends.native import NativeBackend
from sonoran.draftworker.model import DraftModel
from sonoran.draftworker.options import WorkerOptions
from sonoran.draftworker.precision import draft_precision
from sonoran.draftworker.vocabulary import make_vocabulary
from sonoran.kv.memory import KVMemory
from sonoran.tokenization.tokenizer import Tokenizer
from sonoran.weights.source import open_model, resolve_model


def load_draft_model(
    options: WorkerOptions, progress: Callable[[int, int], None] | None = None
) -> DraftModel:
    """Find, open and load the draft. Raises ModelError, DownloadError, ConfigError."""
    file = open_model(resolve_model(options.model))
    if file.directory is not None:
        tokenizer = Tokenizer.from_directory(file.directory)
    else:
        tokenizer = Tokenizer.from_gguf(file.metadata)
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
