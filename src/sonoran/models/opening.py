"""Models on disk with their tokenizers, opened but not loaded."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sonoran.errors import ConfigError, SonoranError
from sonoran.models.download import Progress
from sonoran.models.families import family_draft
from sonoran.models.gguf_reader import GgufMetadata
from sonoran.models.registry import DEFAULT_TARGET, MODELS
from sonoran.models.source import ModelFile, open_model, resolve_model
from sonoran.models.tokenizer.compatibility import require_compatible
from sonoran.models.tokenizer.tokenizer import Tokenizer

DRAFT_OVERHEAD = 1 << 28
"""Bytes beside the weights of a target and a draft: KV memory in use, buffers, a process."""

LoadProgress = Callable[[str, int, int], None]
"""Called with the file's name, the bytes loaded so far and the bytes in all."""


@dataclass(frozen=True, slots=True)
class Reporting:
    """Where long work is reported."""

    pull: Progress | None = None
    load: LoadProgress | None = None

    def loading(self, file: ModelFile) -> Callable[[int, int], None] | None:
        """Return the callback for one file."""
        return self.loading_together([file])[0]

    def loading_together(self, files: Sequence[ModelFile]) -> list[Callable[[int, int], None] | None]:
        """Return a callback for each of the files that are loaded at once: together they are one thing, with the bytes
        of all."""
        if self.load is None:
            return [None] * len(files)
        report, name = self.load, " and ".join(file.path.name for file in files)
        sizes = [file.nbytes for file in files]
        shares = [0.0] * len(files)

        def tell(index: int, done: int, total: int) -> None:
            shares[index] = done / total if total else 1.0
            report(name, round(sum(map(operator.mul, shares, sizes))), sum(sizes))

        return [functools.partial(tell, index) for index in range(len(files))]


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model file and its tokenizer; the weights are not read yet."""

    file: ModelFile
    tokenizer: Tokenizer

    def for_context(self, length: int) -> OpenModel:
        """Return the model for texts of at most ``length`` tokens, see ModelConfig.for_context."""
        return replace(self, file=replace(self.file, config=self.file.config.for_context(length)))

    @property
    def special_ids(self) -> frozenset[int]:
        """Special tokens of the vocabulary."""
        return self.tokenizer.special_ids

    @property
    def stand_in(self) -> int:
        """Token that a draft reads in place of those that its target has more."""
        return self.tokenizer.stand_in


def open_with_tokenizer(model: str | Path, reporting: Reporting | None = None) -> OpenModel:
    """Find (if need be fetch) a model and open it with its tokenizer. Raises ModelError, DownloadError."""
    file = open_model(resolve_model(model, progress=reporting.pull if reporting else None))
    return OpenModel(file, Tokenizer.from_model(file))


def same_tokenizer(first: ModelFile, second: ModelFile) -> bool:
    """Whether two GGUF files have the same tokenizer, byte for byte; templates of chats do not count.

    To build a second one takes longer than all else that happens before weights are read.
    """
    ours, theirs = first.metadata, second.metadata
    if not isinstance(ours, GgufMetadata) or not isinstance(theirs, GgufMetadata):
        return False
    # What a tokenizer leaves out, the size of the embedding adds: padding.
    if first.config.vocab_size != second.config.vocab_size:
        return False
    names = {key for key in (*ours, *theirs) if key.startswith("tokenizer.") and "chat_template" not in key}
    return bool(names) and all(
        key in ours and key in theirs and ours.raw(key) == theirs.raw(key) for key in names
    )


def known_draft(target: OpenModel) -> str | None:
    """Return the name of a draft of the target's family, as ``open_with_tokenizer`` takes it; None if none is known."""
    parameters = sum(math.prod(tensor.shape) for tensor in target.file.tensors.values())
    return family_draft(target.file.config.architecture, target.tokenizer.token_strings(), parameters)


NO_DRAFT = "name a smaller model of its family as the draft, or use mode ngram, which needs none"


def draft_at_hand(target: OpenModel, free_bytes: int) -> tuple[str | None, str]:
    """Return the draft to use where nobody asked for one, else None and why: what is known of the target's family and
    lies in the cache, as that of the default target will, and fits into the free memory beside the target."""
    name, path = known_draft(target), target.file.path
    if name is None:
        return None, f"no draft is known for {path.name} ({target.file.config.architecture}); {NO_DRAFT}"
    wanted = path.name == MODELS[DEFAULT_TARGET].file
    try:
        draft = open_model(resolve_model(name, download=wanted))
    except SonoranError as error:
        return None, f"its draft is not at hand: {error}"
    needed = target.file.nbytes + draft.nbytes + DRAFT_OVERHEAD
    if needed > free_bytes:
        return None, (
            f"target and draft ({name}) take {needed / 1e9:.1f} GB, and {free_bytes / 1e9:.1f} GB are free; "
            "use them all the same with --draft auto"
        )
    return name, ""


def open_draft(
    target: OpenModel, model: str | Path | None, reporting: Reporting | None = None
) -> OpenModel | None:
    """Open the draft of a target and check that it fits; ``auto`` is one of the target's family, None is none.

    Raises ConfigError when no draft of the family is known, CompatibilityError, ModelError, DownloadError.
    """
    if model is None:
        return None
    name = known_draft(target) if model == "auto" else model
    if name is None:
        raise ConfigError(
            f"no draft is known for {target.file.path.name} ({target.file.config.architecture}, "
            f"{target.tokenizer.vocab_size} tokens): {NO_DRAFT}"
        )
    file = open_model(resolve_model(name, progress=reporting.pull if reporting else None))
    if same_tokenizer(target.file, file):
        return OpenModel(file, target.tokenizer)
    draft = OpenModel(file, Tokenizer.from_model(file))
    require_compatible(target.tokenizer, draft.tokenizer)
    return draft
