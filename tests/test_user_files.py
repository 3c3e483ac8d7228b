"""Whatever is wrong with a file of the user's, one line says so: keys, measurements, laws, presets, profiles, prompts."""

from __future__ import annotations

import json
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sonoran.bench.datasets import load_prompts
from sonoran.cli.main import app
from sonoran.errors import SonoranError
from sonoran.planning.profile.advice import advise
from sonoran.planning.profile.choose import choose
from sonoran.planning.profile.placement import Workload
from sonoran.planning.profile.predict import predict_all
from sonoran.planning.profile.prompts import prompts_from_file
from sonoran.planning.profile.store import load_profile, profile_path, save_profile
from sonoran.worker.keys import keygen, load_keys
from tests.fuzzing import Mutate, damage, mutated_bytes, mutated_json
from tests.planning.profile.made_up import acceptance, profile

LONGEST_S = 20  # of one attempt, on a busy machine


class CommandError(SonoranError):
    """What a command said on its one line."""


@dataclass(frozen=True)
class Kind:
    """How a file of a kind is made, which file of a folder it is, and what uses it."""

    make: Callable[[Path], Path]
    use: Callable[[Path], object]
    mutate: Mutate


def as_json(rng: random.Random, data: bytes, path: Path) -> bytes:
    return mutated_json(rng, data)


def as_lines(rng: random.Random, data: bytes, path: Path) -> bytes:
    """JSON lines: one of them damaged."""
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = mutated_json(rng, lines[at])
    return b"\n".join(lines)


CELLS = (
    "",
    "x",
    "-1",
    "0",
    "1e400",
    "nan",
    "inf",
    "1" * 5000,
    '"',
    '"a,b',
    "é",
    "\x00",
    "9" * 20,
    "y" * 200_000,
    "[/red]",
)


def as_table(rng: random.Random, data: bytes, path: Path) -> bytes:
    """CSV: bytes changed, or cells of the table."""
    if rng.random() < 0.3:
        return mutated_bytes(rng, data)
    rows = [line.split(",") for line in data.decode().splitlines()]
    for _ in range(rng.randint(1, 3)):
        row = rng.choice(rows)
        action = rng.random()
        if action < 0.7 and row:
            row[rng.randrange(len(row))] = rng.choice(CELLS)
        elif action < 0.8:
            row.append(rng.choice(CELLS))
        elif action < 0.9:
            rows.append(list(row))
        elif row:
            row.pop()
    return "\n".join(map(",".join, rows)).encode()


def run(*arguments: object) -> None:
    """Run a command. CommandError is what it said when it refused; what else it may not do is an AssertionError."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code in (0, 2), repr(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert not caught, str(caught[0])
    if result.exit_code == 2:
        assert result.stderr.startswith("error: ")
        assert result.stderr.endswith("\n")
        raise CommandError(result.stderr[len("error: ") : -1])


def write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def pairs() -> list[dict[str, object]]:
    return [
        {"draft": f"d{i}", "target": f"t{j}", "draft_perplexity": 20 - 3 * i, "target_perplexity": 9 - j,
         "alpha": 0.5 + 0.07 * i - 0.02 * j}
        for i in range(4) for j in range(3)
    ]  # fmt: skip


def key_file(folder: Path) -> Path:
    return keygen(folder / "keys")[0]


def table(folder: Path) -> Path:
    rows = [",".join(pairs()[0]), *(",".join(map(str, pair.values())) for pair in pairs())]
    path = folder / "pairs.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def counts(folder: Path) -> Path:
    head = "draft,target,draft_perplexity,target_perplexity,gamma,rounds,accepted\n"
    rows = [f"d{i},t{j},{20 - 3 * i},{9 - j},4,100,{150 + 20 * i}\n" for i in range(4) for j in range(3)]
    path = folder / "counts.csv"
    path.write_text(head + "".join(rows), encoding="utf-8")
    return path


def fit(path: Path) -> None:
    run("plan", "fit", path, "--output", path.with_name("out.laws.json"), "--force")


def laws(folder: Path) -> Path:
    fit(table(folder))
    return folder / "out.laws.json"


def latencies(folder: Path) -> Path:
    drafts = [
        {"name": "a", "parameters": 494032768, "milliseconds": {"1": 10.0, "8": 13.0}},
        {"name": "b", "parameters": 134515008, "milliseconds": {"1": 4.0, "8": 5.0}},
    ]
    target = {"1": 40.0, "4": 46.0, "8": 60.0}
    return write(folder / "ms.json", {"target": target, "drafts": drafts, "branches": 8, "floor_ms": 0.5})


def candidates(folder: Path) -> Path:
    own = {"name": "mine", "parameters": 5e8, "tokens": 1e12}
    other = {"name": "other", "parameters": 1e9, "alpha": 0.7}
    third = {"name": "third", "parameters": 3e8, "perplexity": 20}
    return write(folder / "drafts.json", ["Qwen2.5/0.5B", own, other, third])


def preset(folder: Path) -> Path:
    costs = {"target": {"1": 28, "4": 31, "8": 45}, "draft": {"1": 7, "8": 13}, "message_ms": 0.1}
    code = {"name": "code", "system": "here", "sd_k": 3, "ssd_k": 3, "fan_out": [2, 1, 1, 4], "rank_exponent": 1.5,
            "tokens_sd": 3.0, "early_answers": True, "published": {"ar": 35.0}}  # fmt: skip
    other = {"name": "other", "system": "here", "sd_k": 2, "ssd_k": 3, "fan_out": 2, "batch": 2, "source": "a",
             "rejected_exponent": 1.1, "accepted_exponent": 2.0, "published": {"sd": 60.0}, "fitted": ["sd"]}  # fmt: skip
    document = {"name": "mine", "acceptance": [0.8, 0.7], "systems": {"here": costs}, "scenarios": [code, other],
                "sources": {"a": "somewhere"}, "notes": ["a note"], "miss_to_hit": 0.9}  # fmt: skip
    return write(folder / "mine.json", document)


def stored_profile(folder: Path) -> Path:
    return save_profile(profile(acceptances=(acceptance(length=40, texts=2),)), folder)


def use_profile(path: Path) -> None:
    """Read a profile as mode auto does, and do with it what it and ``calibrate explain`` do."""
    key = profile().key
    found = load_profile(key, path.parent.parent)
    assert profile_path(key, path.parent.parent) == path
    if found is not None:
        predictions = predict_all(found, Workload(), k_values=[1, 2])
        choose(predictions)
        advise(found, Workload())
        found.summary()


def plain_prompts(folder: Path) -> Path:
    path = folder / "prompts.txt"
    path.write_text("What is a tower?\nWrite a sort.\n", encoding="utf-8")
    return path


def prompt_lines(folder: Path) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text('"What is a tower?"\n{"prompt": "Write a sort."}\n', encoding="utf-8")
    return path


def dataset(folder: Path) -> Path:
    path = folder / "gsm8k.jsonl"
    path.write_text(
        "".join(f'{{"question": "{i} + 1?", "answer": "?"}}\n' for i in range(4)), encoding="utf-8"
    )
    return path


KINDS = {
    "key": Kind(key_file, lambda path: load_keys(path, "worker"), as_json),
    "pairs.csv": Kind(table, fit, as_table),
    "counts.csv": Kind(counts, fit, as_table),
    "pairs.json": Kind(lambda folder: write(folder / "pairs.json", pairs()), fit, as_json),
    "laws": Kind(laws, lambda path: run("plan", "--target-params", "70B", "--laws", path, "--draws", 20), as_json),
    "latencies": Kind(
        latencies, lambda path: run("plan", "--target-params", "70B", "--latencies", path, "--draws", 0), as_json
    ),
    "candidates": Kind(
        candidates,
        lambda path: run("plan", "--target-params", "70B", "--candidates", path, "--target-perplexity", 8, "--draws", 0),
        as_json,
    ),
    "preset": Kind(preset, lambda path: run("simulate", "--preset", path, "--rounds", 20), as_json),
    "profile": Kind(stored_profile, use_profile, as_json),
    "prompts": Kind(plain_prompts, prompts_from_file, lambda rng, data, path: mutated_bytes(rng, data)),
    "prompt lines": Kind(prompt_lines, prompts_from_file, as_lines),
    "data set": Kind(dataset, lambda path: load_prompts("gsm8k", 2, data_dir=path.parent), as_lines),
}  # fmt: skip


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Interrupt what takes longer."""

    def interrupt(*_: object) -> None:
        raise TimeoutError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attack(folder: Path, kind: Kind, count: int, seed: object) -> int:
    path = kind.make(folder)

    def use() -> None:
        with within(LONGEST_S):
            kind.use(path)

    return damage(path, kind.mutate, use, count, str(path), seed=seed)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_read_or_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    assert attack(tmp_path, KINDS[kind], 25, f"{kind} 0") > 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_files(tmp_path: Path, kind: str) -> None:
    assert attack(tmp_path, KINDS[kind], 1000, f"{kind} 1") > 100


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("profile", "data set")])
@pytest.mark.parametrize("what", ["missing", "a folder", "endless", "no text", "nested"])
def test_files_that_are_none(tmp_path: Path, kind: str, what: str) -> None:
    path = KINDS[kind].make(tmp_path)
    path.unlink()
    if what == "a folder":
        path.mkdir()
    elif what == "endless":
        path.symlink_to("/dev/zero")
    elif what == "no text":
        path.write_bytes(b"\xff\xfe\x00\x80")
    elif what == "nested":
        path.write_bytes(b"[" * 100_000)
    if path.is_file():
        path.chmod(0o600)
    if what == "nested" and kind == "prompts":
        return
    with within(LONGEST_S), pytest.raises(SonoranError) as caught:
        KINDS[kind].use(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
