"""What lies in a repository of the hub, and which of its files make a model that loads here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from sonoran.errors import DownloadError
from sonoran.models.safetensors_model import INDEX, SINGLE
from sonoran.models.tensors import MATRIX_TYPES

PREFERENCE = (
    "Q4_K_M", "Q4_0", "Q4_K_S", "Q4_K_L", "Q4_1", "Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1", "Q6_K", "Q8_0",
)  # fmt: skip
"""What is taken when a user names no quantisation: decoding is as fast as weights are read, and below 4 bits models
get worse quickly. The order begins as llama.cpp's; others come after, from 4 bits up, and those below 4 bits last."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
CONFIG = "config.json"
_NOT_MODELS = re.compile(r"(^|[-_./])(mmproj|imatrix)", re.IGNORECASE)
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})")
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d|TQ\d|BF16|FP?16|FP?32|MXFP4|NVFP4)(?:_[A-Z0-9]+)*)(?=[-./]|$)",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<quant>[\w./-]+))?")


@dataclass(frozen=True, slots=True)
class HubName:
    """``org/repo`` or ``org/repo:quantisation``; the quantisation may be the name of a file, too."""

    repository: str
    quant: str | None = None

    def __str__(self) -> str:
        return self.repository if self.quant is None else f"{self.repository}:{self.quant}"


def parse_hub_name(text: str) -> HubName | None:
    """Read a name of the hub; None for what cannot be one, such as a path to a GGUF file."""
    match = _NAME.fullmatch(text)
    if match is None or match["repository"].endswith((".gguf", ".safetensors", ".json")):
        return None
    return HubName(match["repository"], match["quant"])


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. ``sha256`` is there for large files, ``blob`` (git's hash) for the others."""

    name: str
    size: int
    sha256: str | None = None
    blob: str | None = None


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository as the hub describes it. ``architecture`` is that of its GGUF files, where the hub knows it."""

    name: str
    commit: str
    files: tuple[RemoteFile, ...]
    gated: bool = False
    architecture: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The files of one model. ``quant`` is None for a folder of safetensors; ``why`` says what they were chosen over."""

    repository: Repository
    quant: str | None
    files: tuple[RemoteFile, ...]  # in the order in which they are fetched
    why: str

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.files)

    @property
    def name(self) -> HubName:
        """What names exactly this model."""
        return HubName(self.repository.name, self.quant)


def quantisations(files: Iterable[RemoteFile]) -> dict[str, list[tuple[RemoteFile, ...]]]:
    """GGUF models by quantisation, in capitals; each is one file or the parts of a split one, in order.

    Several models of one quantisation stand in one list. What has no quantisation in its name goes by its name.
    Models of which parts are missing are left out.
    """
    parts: dict[str, dict[int, RemoteFile]] = {}
    counts: dict[str, int] = {}
    for file in files:
        if not file.name.lower().endswith(".gguf") or _NOT_MODELS.search(file.name):
            continue
        stem = file.name[: -len(".gguf")]
        match = _PART.fullmatch(stem)
        base, number, count = (match[1], int(match[2]), int(match[3])) if match else (stem, 1, 1)
        parts.setdefault(f"{base} of {count}", {})[number] = file
        counts[f"{base} of {count}"] = count
    found: dict[str, list[tuple[RemoteFile, ...]]] = {}
    for key, model in sorted(parts.items()):
        if sorted(model) == list(range(1, counts[key] + 1)):
            base = key.rpartition(" of ")[0]
            found.setdefault(quant_of(base), []).append(tuple(model[i] for i in sorted(model)))
    return found


def quant_of(stem: str) -> str:
    """The quantisation in a file's name without its ending, in capitals; the bare name when there is none."""
    named = _QUANT.findall(stem)
    return named[-1].upper() if named else PurePosixPath(stem).name


def loads(quant: str) -> bool:
    """False for a quantisation whose tensors have a type that does not load; true where the name does not tell."""
    if _QUANT.fullmatch(quant) is None:
        return True
    kind = re.sub(r"^UD-", "", quant)
    if not kind.startswith("IQ"):  # whose sizes are types of their own
        kind = re.sub(r"(_(XS|S|M|L|XL|MOE))+$", "", kind)
    kind = {
        "FP16": "F16",
        "FP32": "F32",
        "Q8_K": "Q8_0",
        "IQ3_M": "IQ3_S",
        "IQ3_XS": "IQ3_S",
        "IQ2_M": "IQ2_S",
    }.get(kind, kind)  # as such files are made
    return kind in MATRIX_TYPES or (
        "_" not in kind and any(known.startswith(f"{kind}_") for known in MATRIX_TYPES)
    )


def choose(repository: Repository, quant: str | None) -> Choice:
    """Choose the files of a model that loads here, and say why these.

    Raises DownloadError: no such quantisation (with those that there are), several models, or none that loads.
    """
    found = quantisations(repository.files)
    if quant is None and not found:
        return _folder(repository)
    if not found:
        raise DownloadError(
            f"{repository.name} has no GGUF files, so no {quant!r}; its safetensors are named by {repository.name} alone"
            if _shards(repository)
            else _nothing(repository)
        )
    if quant is not None and quant.lower().endswith(".gguf"):
        return _one_file(repository, quant, found)
    usable = [known for known in ranked(found) if loads(known)]
    if quant is None:
        if not usable:
            raise DownloadError(
                f"{repository.name} has {', '.join(found)}, none of which loads; supported tensor types: "
                f"{', '.join(MATRIX_TYPES)}"
            )
        chosen, others = usable[0], [known for known in ranked(found) if known != usable[0]]
        why = f"the first of {' > '.join(PREFERENCE[:3])} ... that it has; also there: {', '.join(others)}"
        why = why if others else "the only one there"
    else:
        chosen, why = _named(repository, quant, found, usable), "as asked"
    models = found[chosen]
    if len(models) > 1:
        raise DownloadError(
            f"{repository.name} has {len(models)} models in {chosen}; name a file: "
            + ", ".join(f"{repository.name}:{model[0].name}" for model in models[:5])
        )
    return Choice(repository, chosen, models[0], why)


def ranked(found: Iterable[str]) -> list[str]:
    """Quantisations, the preferred first."""
    order = {quant: i for i, quant in enumerate(PREFERENCE)}

    def rank(quant: str) -> tuple[int, bool, int, str]:
        number = re.search(r"\d+", quant) if _QUANT.fullmatch(quant) else None
        bits = int(number[0]) if number else 0
        return order.get(quant, len(order)), bits < 4, bits if bits >= 4 else -bits, quant

    return sorted(found, key=rank)


def _named(repository: Repository, quant: str, found: Collection[str], usable: list[str]) -> str:
    by_lower = {known.lower(): known for known in found}
    chosen = by_lower.get(quant.lower())
    if chosen is None:
        close = difflib.get_close_matches(quant.lower(), by_lower, n=1, cutoff=0.6)
        hint = f"; did you mean {by_lower[close[0]]}? It has: " if close else "; it has: "
        raise DownloadError(f"{repository.name} has no {quant!r}{hint}{', '.join(ranked(found))}")
    if chosen not in usable:
        raise DownloadError(
            f"{chosen} of {repository.name} has tensors of a type that does not load; "
            + (f"these load: {', '.join(usable)}" if usable else "and it has no other that does")
        )
    return chosen


def _one_file(repository: Repository, name: str, found: dict[str, list[tuple[RemoteFile, ...]]]) -> Choice:
    models = [model for group in found.values() for model in group]
    for model in models:
        if any(name in (file.name, PurePosixPath(file.name).name) for file in model):
            return Choice(repository, name, model, "as asked")
    names = [model[0].name for model in models]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else f"it has: {', '.join(names[:10])}"
    raise DownloadError(f"{repository.name} has no file {name}; {hint}")


def _shards(repository: Repository) -> list[RemoteFile]:
    """The safetensors of the repository's own folder: one file, or those of an index."""
    top = {file.name: file for file in repository.files if "/" not in file.name}
    if SINGLE in top:
        return [top[SINGLE]]
    shard = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
    shards = [file for name, file in sorted(top.items()) if shard.fullmatch(name)]
    return [top[INDEX], *shards] if INDEX in top and shards else []


def _folder(repository: Repository) -> Choice:
    top = {file.name: file for file in repository.files}
    shards = _shards(repository)
    if CONFIG not in top or not shards:
        raise DownloadError(_nothing(repository))
    small = [top[name] for name in (CONFIG, *TOKENIZER_FILES) if name in top]
    return Choice(repository, None, (*small, *shards), "its safetensors; it has no GGUF files")


def _nothing(repository: Repository) -> str:
    kinds = sorted({PurePosixPath(file.name).suffix for file in repository.files} - {""})
    return (
        f"{repository.name} has no model that loads: no GGUF files, and not {CONFIG} with {SINGLE} (or shards); "
        f"its files end in {', '.join(kinds) or 'nothing'}"
    )
