"""From options to a draft model in memory."""

from __future__ import annotations

from collections.abc import Callable

from sonoran.backends.native import NativeBackend
from sonoran.draftworker.model import DraftModel
from sonoran.draftworker.options import WorkerOptions
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
        quantize=options.quantize,
        progress=progress,
    )
    width = backend.config.vocab_size
    if options.draft_vocab is not None and options.draft_vocab < width:
        special = [token for token in tokenizer.special_ids if token < width]
        backend.restrict_output(sorted({*range(options.draft_vocab), *special}))
        width = max(options.draft_vocab, *(token + 1 for token in special))
    return DraftModel(
        backend=backend,
        kv=KVMemory(backend),
        name=file.path.name,
        fingerprint=tokenizer.fingerprint(),
        width=width,
        max_rows=options.max_rows,
    )
