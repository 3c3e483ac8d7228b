"""Several prompts at once: the throughput of each mode by batch size, on the same prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from sonoran.bench.interleave import StepProgress
from sonoran.bench.stats import summarize
from sonoran.errors import ConfigError

MOST_GROUPS = 3
"""Groups of prompts that are measured of each batch size; fewer where the prompts do not suffice."""


class TogetherRunner(Protocol):
    """A mode that can decode several prompts at once."""

    def run_together(
        self, prompts: Sequence[Sequence[int]], seed: int, max_tokens: int
    ) -> tuple[int, float]: ...


def check_batches(batches: Sequence[int], num_prompts: int) -> tuple[int, ...]:
    """Return the batch sizes, each of which needs as many prompts. Raises ConfigError."""
    for batch in batches:
        if not 1 <= batch <= num_prompts:
            raise ConfigError(
                f"--batch {batch} needs as many prompts, and there are {num_prompts}; see --num-prompts"
            )
    if len(set(batches)) < len(batches):
        raise ConfigError("--batch names a size twice")
    return tuple(sorted(batches))


def measure_together(
    runners: Mapping[str, TogetherRunner],
    prompts: Sequence[Sequence[int]],
    batches: Sequence[int],
    *,
    max_tokens: int,
    seed: int = 0,
    progress: StepProgress | None = None,
) -> list[dict[str, Any]]:
    """Decode groups of prompts in every mode, in turns; return one entry for each mode and batch size.

    ``tokens_per_s`` is all new tokens of a group over the seconds from call to return, prompts included: the median
    over the groups, with its extremes and spread.
    """
    groups = {
        batch: [prompts[i * batch : (i + 1) * batch] for i in range(min(MOST_GROUPS, len(prompts) // batch))]
        for batch in batches
    }
    total = sum(map(len, groups.values())) * len(runners)
    found, done, names = [], 0, list(runners)
    for batch, of_batch in groups.items():
        rates: dict[str, list[float]] = {name: [] for name in names}
        for index, group in enumerate(of_batch):
            turn = index % len(names)
            for name in names[turn:] + names[:turn]:
                tokens, seconds = runners[name].run_together(group, seed + index * batch, max_tokens)
                rates[name].append(tokens / seconds)
                done += 1
                if progress is not None:
                    progress(f"{name}, batch {batch}", done, total)
        for name, measured in rates.items():
            summary = asdict(summarize(measured))
            found.append({"mode": name, "batch": batch, "tokens_per_s": summary.pop("median"), **summary})
    return found
