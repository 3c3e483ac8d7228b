"""Print what a profile of `sonoran calibrate` says about a draft.

    sonoran calibrate --prompts humaneval --data-dir data
    python scripts/profile_facts.py ~/.cache/sonoran/profiles/PROFILE.json

For each temperature and rule: hit rates by budget when guesses follow the average of all rounds and when they follow the
draft's confidence; tokens per verification by K; and how often a drafted token was accepted, by the chance that the
draft gave it. Everything is read off the recorded texts; no model is run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from sonoran.errors import PlanError
from sonoran.planning.profile.acceptance import Acceptance
from sonoran.planning.profile.profile import Profile
from sonoran.planning.profile.replay import (
    Replay,
    best_fan_out,
    replay_confidence,
    replay_lengths,
    replay_ssd,
)
from sonoran.theory.speedup import tokens_from_lengths

EDGES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


def hit_rate(replay: Replay) -> float:
    """Return hits / rounds."""
    return (replay.hits_after_primary + replay.hits_after_backup) / replay.rounds


def hit_rates(acceptance: Acceptance, k: int, budgets: list[int]) -> Iterator[str]:
    """Yield a table of hit rates by budget."""
    yield "hit rate, budget".ljust(24) + "".join(f"{b:>7}" for b in budgets)
    average = [hit_rate(replay_ssd(acceptance, best_fan_out(acceptance, k, b))) for b in budgets]
    yield "  average of rounds".ljust(24) + "".join(f"{rate:>7.2f}" for rate in average)
    if acceptance.has_chances:
        confident = [hit_rate(replay_confidence(acceptance, k, b)) for b in budgets]
        yield "  confidence".ljust(24) + "".join(f"{rate:>7.2f}" for rate in confident)


def lengths(acceptance: Acceptance, largest: int) -> Iterator[str]:
    """Yield tokens per verification by K."""
    for k in range(1, largest + 1):
        counts = replay_lengths(acceptance, k)
        yield f"tokens per verification, K = {k}: {tokens_from_lengths(counts):.2f}"


def by_confidence(acceptance: Acceptance) -> Iterator[str]:
    """Yield acceptance by the chance that the draft gave its token."""
    if not acceptance.has_chances:
        return
    found = [
        (chances[0], rank == 0)
        for text in acceptance.texts
        for chances, rank in zip(text.chances, text.rejected, strict=True)
        if chances
    ]
    for low, high in pairwise(EDGES):
        inside = [accepted for chance, accepted in found if low <= chance < high or chance == high == 1.0]
        if inside:
            yield (
                f"chance {low:.2f} to {high:.2f}: {sum(inside) / len(inside):.2f} accepted of {len(inside)}"
            )


def main() -> None:
    """Read a profile and print its facts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profile", type=Path, help="a file in the cache's folder profiles/")
    parser.add_argument("-k", type=int, default=4, help="tokens per speculation")
    parser.add_argument("--budgets", default="1,2,3,4,5,6,8", help="guesses per round")
    options = parser.parse_args()
    profile = Profile.from_json(options.profile.read_bytes())
    budgets = [int(part) for part in options.budgets.split(",")]
    for acceptance in profile.acceptance:
        sys.stdout.write(
            f"\n{acceptance.verification}, temperature {acceptance.temperature:g}: {acceptance.positions} positions of "
            f"{len(acceptance.texts)} texts, {acceptance.rate:.2f} accepted\n"
        )
        for part in (
            lambda a=acceptance: hit_rates(a, options.k, budgets),
            lambda a=acceptance: lengths(a, options.k),
            lambda a=acceptance: by_confidence(a),
        ):
            try:
                for line in part():
                    sys.stdout.write(f"{line}\n")
            except PlanError as error:  # every text is too short for K
                sys.stdout.write(f"{error}\n")


if __name__ == "__main__":
    main()
