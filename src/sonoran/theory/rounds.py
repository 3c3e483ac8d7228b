"""One round: tokens it emits, time the draft needs for it, and the longest lookahead that stays hidden."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sonoran.errors import PlanError
from sonoran.theory.checks import lookahead, non_negative, probability


def tokens_per_round(acceptance: float, num_speculative_tokens: int) -> float:
    """Return the expected tokens of a round, bonus included, under a constant acceptance rate a.

    ``(1 - a^(K+1)) / (1 - a)`` (Leviathan et al.), K + 1 for a = 1. Raises PlanError.
    """
    a, k = probability("acceptance", acceptance), lookahead(num_speculative_tokens)
    return math.fsum(a**i for i in range(k + 1))


def tokens_from_lengths(lengths: Sequence[float]) -> float:
    """Return the mean tokens of a round from a histogram of accepted lengths 0..K (counts or probabilities).

    Raises PlanError for an empty or negative histogram.
    """
    total = math.fsum(lengths)
    if not lengths or total <= 0.0 or min(lengths) < 0.0:
        raise PlanError(
            f"accepted-length histogram must be non-negative with a positive sum, got {list(lengths)!r}"
        )
    return math.fsum((k + 1) * x for k, x in enumerate(lengths)) / total


def draft_round_time(
    service: float, trunk_pass: float, tree_step: float, num_speculative_tokens: int
) -> float:
    """Return the time of a draft round: answering, the trunk pass, then K tree steps.

    Any one unit. Raises PlanError.
    """
    k = lookahead(num_speculative_tokens)
    fixed = non_negative("service", service) + non_negative("trunk_pass", trunk_pass)
    return fixed + k * non_negative("tree_step", tree_step)


def is_hidden(draft_time: float, verification_time: float, handshake: float = 0.0) -> bool:
    """Return whether drafting ends before verification does: ``T_draft <= T_verify + handshake``.

    Raises PlanError.
    """
    window = non_negative("verification_time", verification_time) + non_negative("handshake", handshake)
    return non_negative("draft_time", draft_time) <= window


def longest_hidden_lookahead(
    verification_time: float, service: float, trunk_pass: float, tree_step: float, limit: int = 64
) -> int:
    """Return the largest K <= ``limit`` whose draft round fits into ``verification_time``; 0 if none does.

    Raises PlanError.
    """
    room = non_negative("verification_time", verification_time) - draft_round_time(
        service, trunk_pass, 0.0, 0
    )
    step = non_negative("tree_step", tree_step)
    if room < 0.0:
        return 0
    return limit if step == 0.0 or room >= step * limit else int(room // step)
