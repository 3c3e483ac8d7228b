"""A target and its draft, opened: their key, their tokenizer, and how each is loaded onto cores."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import sonoran
from sonoran.backends.load import Loaded, Role, load_backend
from sonoran.backends.placement import default_kernels, find_processors, place_threads
from sonoran.config import DEFAULT_DRAFT_VOCAB, DraftQuantize, Quantize
from sonoran.errors import ConfigError
from sonoran.models.opening import OpenModel, Reporting, open_draft, open_with_tokenizer
from sonoran.models.registry import draft_precision
from sonoran.models.tokenizer.tokenizer import Tokenizer
from sonoran.planning.profile.measure import BLOCK_SIZE
from sonoran.planning.profile.profile import Cores, MachineKey, ModelKey, ProfileKey


@dataclass(frozen=True, slots=True)
class Pair:
    """Open models with their settings; the weights are not read yet. ``cores`` are those that may be used."""

    target: OpenModel
    draft: OpenModel | None
    key: ProfileKey

    @property
    def state(self) -> str:
        """Program and files as they are now: when it changes, a quick measurement is made again."""
        files = [self.target.file.path, *([self.draft.file.path] if self.draft else [])]
        return " ".join([sonoran.__version__, *(str(file.stat().st_mtime_ns) for file in files)])

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer."""
        return self.target.tokenizer

    def load(self, role: Role, cores: Cores, num_blocks: int) -> Loaded:
        """Load one of the models onto cores, one thread each. Raises ModelError, ConfigError."""
        model, key = (self.draft, self.key.draft) if role == "draft" else (self.target, self.key.target)
        if model is None or key is None:
            raise ConfigError("there is no draft to load")
        return load_backend(
            role,
            model,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            cores=cores,
            quantize=cast("DraftQuantize | None", key.quantize),  # checked when the key was made
            draft_vocab=key.draft_vocab,
        )


def open_pair(
    target: str | Path,
    draft: str | Path | None,
    *,
    cores: Cores | None = None,
    quantize: Quantize | None = None,
    draft_quantize: DraftQuantize | None = None,
    draft_vocab: int | None = None,
    reporting: Reporting | None = None,
) -> Pair:
    """Open both models and check that they fit. ``draft`` "auto" is one of the target's family, None is none.

    Precision and vocabulary of the draft have the engine's defaults (4 bits, 3 for some; 32768 ids, 0 for all).

    Raises ModelError, DownloadError, CompatibilityError, ConfigError.
    """
    report = reporting or Reporting()
    place_threads(None, cores)
    opened = open_with_tokenizer(target, report)
    draft_model = open_draft(opened, draft, report)
    key = ProfileKey(
        _model_key(opened, quantize, None),
        None
        if draft_model is None
        else _model_key(
            draft_model,
            draft_quantize or draft_precision(None, draft_model.file.path),
            DEFAULT_DRAFT_VOCAB if draft_vocab is None else draft_vocab,
        ),
        machine_key(cores),
    )
    return Pair(opened, draft_model, key)


def machine_key(cores: Cores | None = None) -> MachineKey:
    """Return the key of this machine; ``cores`` None: those that threads are placed on by default."""
    usable = cores or find_processors().cores
    return MachineKey(processor_name(), default_kernels(), usable)


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name as the system has it."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _model_key(model: OpenModel, quantize: str | None, draft_vocab: int | None) -> ModelKey:
    count = sum(math.prod(tensor.shape) for tensor in model.file.tensors.values())
    return ModelKey(model.file.path.name, model.file.nbytes, count, quantize, draft_vocab)
