"""Models on disk with their tokenizers, opened but not loaded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sonoran.errors import ConfigError
from sonoran.models.download import Progress
from sonoran.models.families import family_draft
from sonoran.models.source import ModelFile, open_model, resolve_model
from sonoran.models.tokenizer.compatibility import require_compatible
from sonoran.models.tokenizer.tokenizer import Tokenizer

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

    def for_context(self, length: int) -> OpenModel:
        """Return the model for texts of at most ``length`` tokens, see ModelConfig.for_context."""
        return replace(self, file=replace(self.file, config=self.file.config.for_context(length)))


def open_with_tokenizer(model: str | Path, reporting: Reporting | None = None) -> OpenModel:
    """Find (if need be fetch) a model and open it with its tokenizer. Raises ModelError, DownloadError."""
    file = open_model(resolve_model(model, progress=reporting.pull if reporting else None))
    return OpenModel(file, Tokenizer.from_model(file))


def known_draft(target: OpenModel) -> str | None:
    """Return the name of a draft of the target's family, as ``open_with_tokenizer`` takes it; None if none is known."""
    parameters = sum(math.prod(tensor.shape) for tensor in target.file.tensors.values())
    return family_draft(target.file.config.architecture, target.tokenizer.token_strings(), parameters)


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
            f"{target.tokenizer.vocab_size} tokens): name a smaller model of its family as the draft, "
            "or use mode ngram, which needs none"
        )
    draft = open_with_tokenizer(name, reporting)
    require_compatible(target.tokenizer, draft.tokenizer)
    return draft
