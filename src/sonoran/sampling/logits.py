"""What the parameters of a request do to a row of logits before it is sampled: a pure function of row and prefix.

Order: logit bias, repetition penalty, frequency and presence penalties, end tokens forbidden until
``min_tokens``; then temperature; then min-p and top-k; then top-p over what is left. Equal logits are ordered
by token id.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sonoran.sampling import rowops
from sonoran.sampling.params import SamplingParams
from sonoran.types import FloatArray, Int64Array, IntArray

TokenIds = Sequence[int] | IntArray


def cut_of(params: SamplingParams) -> rowops.Cut:
    """Return temperature and truncation in the form that the row operations take."""
    return rowops.Cut(1.0 / params.temperature, params.top_k, params.top_p, params.min_p)


def adjust(
    logits: FloatArray,
    prefix_ids: TokenIds,
    prompt_length: int,
    params: SamplingParams,
    eos_ids: Sequence[int] = (),
    position: int | None = None,
) -> FloatArray:
    """Apply bias, penalties and forbidden end tokens; return the row itself if nothing applies, else a copy.

    ``position`` is that of the token to be sampled, ``len(prefix_ids)`` unless given; with it, the prefix may
    be left empty when ``params.has_penalties`` is false. Ids beyond the row (a draft with fewer tokens) are
    ignored.
    """
    position = len(prefix_ids) if position is None else position
    forbidden = end_tokens(params, eos_ids) if position - prompt_length < params.min_tokens else ()
    row: FloatArray = rowops.as_row(logits)
    if not (params.logit_bias or params.has_penalties or forbidden):
        return row
    row = row.copy()
    size = row.shape[0]
    for token, bias in params.logit_bias.items():
        if token < size:
            row[token] += np.float32(bias)
    if params.has_penalties:
        _penalise(row, np.asarray(prefix_ids, np.int64), prompt_length, params)
    for token in forbidden:
        if token < size:
            row[token] = -np.inf
    return row


def end_tokens(params: SamplingParams, eos_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens that end this request: its stop tokens, and the model's unless ``ignore_eos``."""
    return params.stop_token_ids if params.ignore_eos else (*eos_ids, *params.stop_token_ids)


def _penalise(row: FloatArray, prefix: Int64Array, prompt_length: int, params: SamplingParams) -> None:
    """Penalise in place; repetition as in CTRL (Keskar et al. 2019): divide if positive, else multiply."""
    size = row.shape[0]
    if params.repetition_penalty != 1.0:
        seen = np.unique(prefix)
        seen = seen[seen < size]
        values, penalty = row[seen].astype(np.float64), params.repetition_penalty
        row[seen] = np.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        seen, counts = np.unique(prefix[prompt_length:], return_counts=True)
        counts, seen = counts[seen < size], seen[seen < size]
        row[seen] = row[seen] - (params.presence_penalty + params.frequency_penalty * counts)
