"""Prompts for benchmarks: HumanEval, edits of its solutions, GSM8K and Spec-Bench, from a folder or the model hub."""

from __future__ import annotations

import gzip
import socket
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sonoran.errors import ConfigError, DownloadError, nearest
from sonoran.models.untrusted import decode_text, parse_json, refusing

LARGEST_SET = 1 << 28  # bytes of a file of prompts, unpacked

Row = dict[str, Any]

NEW_NAME = "renamed_function"
"""What the functions of the set ``edits`` are to be called."""

CONNECT_S = 4.0
"""Longest wait for a connection to the hub."""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt: the user's message, where it is from, and its category if the set has any."""

    id: str
    text: str
    category: str | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """How one set is found and read."""

    name: str
    files: tuple[str, ...]  # names in a folder: ours, then those of the original distribution
    hub_repository: str
    hub_files: Callable[[Sequence[str]], list[tuple[str, str | None]]]  # (file, category of its rows)
    read: Callable[[Row, int], BenchPrompt | None]
    categories: tuple[str, ...] = ()  # taken unless others are asked for


def _humaneval(row: Row, index: int) -> BenchPrompt | None:
    prompt = row.get("prompt")
    if not isinstance(prompt, str):
        return None
    text = f"Complete this Python function. Answer with the code only.\n\n```python\n{prompt.strip()}\n```"
    return BenchPrompt(str(row.get("task_id", index)), text)


def _edits(row: Row, index: int) -> BenchPrompt | None:
    """Ask for a solution of HumanEval once more, with one name changed: nearly all of the answer is in the prompt."""
    prompt, solution, name = (row.get(key) for key in ("prompt", "canonical_solution", "entry_point"))
    if not (isinstance(prompt, str) and isinstance(solution, str) and isinstance(name, str)):
        return None
    code = f"{prompt.strip()}\n{solution.rstrip()}"
    text = (
        f"Repeat this code with the function `{name}` renamed to `{NEW_NAME}`, and nothing else changed. "
        f"Answer with the code only.\n\n```python\n{code}\n```"
    )
    return BenchPrompt(str(row.get("task_id", index)), text)


def _gsm8k(row: Row, index: int) -> BenchPrompt | None:
    question = row.get("question")
    if not isinstance(question, str):
        return None
    return BenchPrompt(str(index), question.strip() + "\nThink step by step.")


def _spec_bench(row: Row, index: int) -> BenchPrompt | None:
    turns = row.get("turns", row.get("prompt"))
    first = turns[0] if isinstance(turns, list) and turns else turns
    if not isinstance(first, str):
        return None
    return BenchPrompt(str(row.get("question_id", index)), first, row.get("category"))


def _of_humaneval(name: str, read: Callable[[Row, int], BenchPrompt | None]) -> Dataset:
    return Dataset(
        name,
        ("humaneval.jsonl", "HumanEval.jsonl", "HumanEval.jsonl.gz"),
        "bigcode/humanevalpack",
        lambda categories: [("data/python/data/humanevalpack.jsonl", None)],
        read,
    )


DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        _of_humaneval("humaneval", _humaneval),
        _of_humaneval("edits", _edits),
        Dataset(
            "gsm8k",
            ("gsm8k.jsonl", "test.jsonl"),
            "openai/gsm8k",
            lambda categories: [("main/test-00000-of-00001.parquet", None)],
            _gsm8k,
        ),
        Dataset(
            "spec_bench",
            ("spec_bench.jsonl", "question.jsonl"),
            "RedHatAI/speculator_benchmarks",
            lambda categories: [(f"{category}.jsonl", category) for category in categories],
            _spec_bench,
            categories=("writing", "qa"),
        ),
    )
}


def find_dataset(name: str) -> Dataset:
    """Look a data set up; ConfigError names the nearest one."""
    if name not in DATASETS:
        raise ConfigError(f"unknown data set {name!r}{nearest(name, DATASETS)}")
    return DATASETS[name]


def load_prompts(
    name: str,
    count: int,
    *,
    data_dir: Path | None = None,
    categories: Sequence[str] = (),
    fetch: Callable[[str, str], Path] | None = None,
) -> list[BenchPrompt]:
    """Return `count` distinct prompts, spread evenly over the set, in its order; the same in each run.

    With several categories each gives its share. `fetch` gets a file of a hub repository (the model hub's
    client unless given). Raises ConfigError (unknown set or category, a file that is not what it should be,
    too few prompts) and DownloadError.
    """
    dataset = find_dataset(name)
    if count < 1:
        raise ConfigError(f"the number of prompts must be at least 1, got {count}")
    if categories and not dataset.categories:
        raise ConfigError(f"data set {name!r} has no categories")
    wanted = tuple(categories) or dataset.categories
    sources: list[tuple[Path, str | None]]
    if data_dir is not None:
        sources = [(_find_file(dataset, data_dir), None)]
    else:
        get = fetch or _fetch_from_hub
        sources = [(get(dataset.hub_repository, file), label) for file, label in dataset.hub_files(wanted)]
    prompts = list(_distinct(_read(dataset, sources)))
    if not wanted:
        return _spread(prompts, count, name)
    known = {prompt.category for prompt in prompts if prompt.category}
    for category in wanted:
        if category not in known:
            raise ConfigError(f"{name} has no category {category!r}{nearest(category, known)}")
    shares = [count // len(wanted) + (i < count % len(wanted)) for i in range(len(wanted))]
    chosen: list[BenchPrompt] = []
    for i, category in enumerate(wanted):
        pool = [prompt for prompt in prompts if prompt.category == category]
        # A small category gives all it has; the next ones make up for it.
        take = min(shares[i], len(pool))
        if take < shares[i] and i + 1 < len(shares):
            shares[i + 1] += shares[i] - take
        chosen += _spread(pool, take if i + 1 < len(shares) else shares[i], f"{name}, {category}")
    return chosen


def _spread(prompts: list[BenchPrompt], count: int, what: str) -> list[BenchPrompt]:
    if count > len(prompts):
        raise ConfigError(f"{what} has {len(prompts)} distinct prompts, fewer than the {count} asked for")
    return [prompts[i * len(prompts) // count] for i in range(count)]


def _distinct(prompts: Iterable[BenchPrompt]) -> Iterator[BenchPrompt]:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.text not in seen:
            seen.add(prompt.text)
            yield prompt


def _find_file(dataset: Dataset, folder: Path) -> Path:
    for name in dataset.files:
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(f"no {dataset.name} in {folder}: none of {', '.join(dataset.files)} is there")


def _read(dataset: Dataset, sources: list[tuple[Path, str | None]]) -> Iterator[BenchPrompt]:
    for path, category in sources:
        for index, row in enumerate(_rows(path)):
            prompt = dataset.read(row, index) if isinstance(row, dict) else None
            if prompt is None or not prompt.text.strip():
                raise ConfigError(f"{path}: row {index + 1} is not a row of {dataset.name}")
            yield prompt if category is None else BenchPrompt(prompt.id, prompt.text, category)


def _rows(path: Path) -> Iterator[Any]:
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    with refusing(path, ConfigError):
        opener = gzip.open if path.suffix == ".gz" else Path.open
        with opener(path, "rb") as stream:
            text = decode_text(stream.read(LARGEST_SET + 1), ConfigError, most=LARGEST_SET)
        yield from [parse_json(line, ConfigError) for line in text.splitlines() if line.strip()]


def _parquet_rows(path: Path) -> list[Any]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            "this set comes as a Parquet file, which takes pyarrow to read: pip install pyarrow, or pass a folder with "
            "JSON lines as --data-dir"
        ) from None
    with refusing(path, ConfigError):
        rows: list[Any] = parquet.read_table(path).to_pylist()
    return rows


def _fetch_from_hub(repository: str, file: str) -> Path:
    import huggingface_hub
    from huggingface_hub.constants import ENDPOINT

    # Where nobody is there, the hub's client tries again for half a minute, a line each time.
    refusal = _refusal(ENDPOINT)
    try:
        return Path(
            huggingface_hub.hf_hub_download(
                repository, file, repo_type="dataset", etag_timeout=6, local_files_only=refusal is not None
            )
        )
    except Exception as error:
        reason = refusal or next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DownloadError(
            f"{repository}/{file} could not be fetched from the model hub ({reason}); --data-dir names a folder with it, "
            "--prompts a file with prompts of your own"
        ) from error


def _refusal(endpoint: str) -> str | None:
    """Return why the hub, or the proxy before it, cannot be connected to; None when it can."""
    scheme = urlsplit(endpoint).scheme
    place = urlsplit(urllib.request.getproxies().get(scheme) or endpoint)
    try:
        port = place.port or (443 if place.scheme == "https" else 80)
        socket.create_connection((place.hostname or "", port), timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
