"""Models on disk with their tokenizers, opened but not loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sonoran.config import SpeculativeConfig
from sonoran.models.download import Progress
from sonoran.models.registry import DEFAULT_DRAFT
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


def open_with_tokenizer(model: str | Path, reporting: Reporting | None = None) -> OpenModel:
    """Find (if need be fetch) a model and open it with its tokenizer. Raises ModelError, DownloadError."""
    file = open_model(resolve_model(model, progress=reporting.pull if reporting else None))
    return OpenModel(file, Tokenizer.from_model(file))


def open_draft(
    target: OpenModel, speculative: SpeculativeConfig | None, reporting: Reporting
) -> OpenModel | None:
    """Open the draft that is to run on this machine, if any. Raises CompatibilityError, ModelError."""
    if speculative is None or speculative.model is None:
        return None
    name = DEFAULT_DRAFT if speculative.model == "auto" else speculative.model
    draft = open_with_tokenizer(name, reporting)
    require_compatible(target.tokenizer, draft.tokenizer)
    return draft
