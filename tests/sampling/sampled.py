"""The distribution that the package samples a row from: what ``adjust`` and ``select`` make of it together."""

from typing import NamedTuple

import numpy as np

from sonoran.sampling import rowops
from sonoran.sampling.logits import adjust, cut_of


class Distribution(NamedTuple):
    """Tokens that can be sampled, ascending by id."""

    ids: np.ndarray
    probabilities: np.ndarray


def sampled_distribution(logits, prefix, prompt_length, params, eos_ids=()):
    """The distribution of the token after the prefix; a point mass at temperature 0."""
    row = adjust(logits, prefix, prompt_length, params, eos_ids)
    if params.greedy:
        return Distribution(np.array([rowops.argmax(row)]), np.ones(1))
    kept = rowops.select(row, cut_of(params))
    return Distribution(kept.ids, kept.weights / kept.weights.sum())
