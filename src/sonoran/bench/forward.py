"""`sonoran bench forward`: milliseconds per pass by rows, memory bandwidth, prefill, peers beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from sonoran.bench.interleave import StepProgress, Subject, round_robin, task_names
from sonoran.bench.stats import Summary, ratio
from sonoran.errors import ConfigError
from sonoran.types import IntArray

PREFILL_REPEATS = 3
MAX_ROWS = 256


class Own(Subject, Protocol):
    """A subject that also knows its memory traffic: Sonoran's backend."""

    def read_loop_seconds(self) -> float: ...

    def bytes_read(self, rows: int) -> int: ...


def context_tokens(length: int, vocab_size: int) -> IntArray:
    """Return the token ids that every subject reads as its context: random, the same in each run."""
    if length < 1:
        raise ConfigError(f"the context must be at least 1 token, got {length}")
    return np.random.default_rng(0).integers(0, vocab_size, length).astype(np.int32)


def check_rows(counts: Sequence[int]) -> list[int]:
    """Return the row counts in ascending order without repetitions. Raises ConfigError."""
    wrong = [count for count in counts if not 1 <= count <= MAX_ROWS]
    if wrong or not counts:
        raise ConfigError(f"rows must be numbers from 1 to {MAX_ROWS}, got {wrong[0] if wrong else 'none'}")
    return sorted(set(counts))


def measure(
    owns: Sequence[Own],
    peers: Sequence[Subject],
    row_counts: Sequence[int],
    *,
    context: int,
    read_loop_bytes: int,
    repeats: int = 15,
    settle: Callable[[], None] | None = None,
    progress: StepProgress | None = None,
) -> dict[str, Any]:
    """Measure all subjects, interleaved, and return one JSON document; the first of `owns` is the main one.

    Prefill comes first and leaves the context in each KV memory. Every task is warmed up once.
    """
    counts = check_rows(row_counts)
    if repeats < 1:
        raise ConfigError(f"repeats must be at least 1, got {repeats}")
    subjects: list[Subject] = [*owns, *peers]
    options: dict[str, Any] = {"progress": progress, **({"settle": settle} if settle else {})}
    prefills = round_robin(
        {f"{subject.name}, prefill": subject.prefill_seconds for subject in subjects},
        min(repeats, PREFILL_REPEATS),
        **options,
    )
    tasks: dict[str, Callable[[], float]] = {f"{own.name}, read loop": own.read_loop_seconds for own in owns}
    # All subjects at one row count before the next count: neighbours in time are what is compared.
    for rows in counts:
        for subject in subjects:
            tasks[task_names(subject, counts)[rows]] = partial(subject.forward_seconds, rows)
    timed = round_robin(tasks, repeats, **options)

    documents = []
    for subject in subjects:
        names = task_names(subject, counts)
        loop = timed.get(f"{subject.name}, read loop")
        read_rate = read_loop_bytes / loop.median / 1e9 if loop else None
        bytes_read = subject.bytes_read if loop else None  # type: ignore[attr-defined]
        results = rows_table({rows: timed[names[rows]] for rows in counts}, bytes_read, read_rate)
        document = {"name": subject.name, **subject.describe(), "results": results}
        if loop:
            document["read_gb_per_s"] = read_rate
            document["read_gb_per_s_max"] = read_loop_bytes / loop.min / 1e9
        documents.append({**document, **prefill_result(prefills[f"{subject.name}, prefill"], context)})
    main, *others = documents
    for other in others:
        other["main_to_this"] = compare(main, other)
    return {**main, "context": context, "repeats": repeats, "others": others}


def rows_table(
    timed: dict[int, Summary], bytes_read: Callable[[int], int] | None, read_gb_per_s: float | None
) -> list[dict[str, Any]]:
    """Return one entry per row count; milliseconds, and the memory traffic where it is known."""
    first = timed[min(timed)]
    table = []
    for rows, seconds in timed.items():
        entry: dict[str, Any] = {
            "rows": rows,
            "ms_median": seconds.median * 1e3,
            "ms_min": seconds.min * 1e3,
            "ms_max": seconds.max * 1e3,
            "spread": seconds.spread,
            "relative_to_fewest_rows": ratio(seconds.median, first.median),
        }
        if bytes_read is not None:
            rate = bytes_read(rows) / seconds.median / 1e9
            entry |= {"bytes_read": bytes_read(rows), "gb_per_s": rate}
            entry["share_of_read_loop"] = ratio(rate, read_gb_per_s or 0.0)
        table.append(entry)
    return table


def prefill_result(seconds: Summary, tokens: int) -> dict[str, Any]:
    """Return prefill tokens per second (of the median) and the times behind it."""
    return {
        "prefill_tokens_per_s": tokens / seconds.median,
        "prefill": {
            "tokens": tokens,
            "ms_median": seconds.median * 1e3,
            "ms_min": seconds.min * 1e3,
            "spread": seconds.spread,
        },
    }


def compare(main: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the main subject's times divided by another's, by rows; below 1 the main one is faster."""
    theirs = {entry["rows"]: entry["ms_median"] for entry in other["results"]}
    return {
        "ms": {str(e["rows"]): ratio(e["ms_median"], theirs[e["rows"]]) for e in main["results"]},
        "prefill_ms": ratio(main["prefill"]["ms_median"], other["prefill"]["ms_median"]),
    }
