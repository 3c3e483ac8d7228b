"""What the parameters of a request do to a row of logits before it is sampled: a pure function of row and prefix.

Order: logit bias, repetition penalty, frequency and presence penalties; tokens forbidden: end tokens until
``min_tokens``, what would complete a bad word, and all but those allowed; then temperature; then min-p and top-k; then
top-p over what is left. Equal logits are ordered by token id.
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
    """Apply bias, penalties and forbidden tokens; return the row itself if nothing applies, else a copy.

    ``position`` is that of the token to be sampled, ``len(prefix_ids)`` unless given; with it, the prefix may
    be left empty when ``params.reads_prefix`` is false. Ids beyond the row (a draft with fewer tokens) are
    ignored, and so is a list of allowed tokens of which the row has none.
    """
    position = len(prefix_ids) if position is None else position
    forbidden = end_tokens(params, eos_ids) if position - prompt_length < params.min_tokens else ()
    row: FloatArray = rowops.as_row(logits)
    size = row.shape[0]
    if params.bad_word_ids:
        forbidden = (*forbidden, *_completing(params.bad_word_ids, prefix_ids[prompt_length:]))
    allowed = [token for token in params.allowed_token_ids or () if token < size]
    if not (params.logit_bias or params.has_penalties or forbidden or allowed):
        return row
    row = row.copy()
    for token, bias in params.logit_bias.items():
        if token < size:
            row[token] += np.float32(bias)
    if params.has_penalties:
        _penalise(row, np.asarray(prefix_ids, np.int64), prompt_length, params)
    kept = row[allowed]
    if np.isfinite(kept).any():
        row[:] = -np.inf
        row[allowed] = kept
    for token in forbidden:
        if token < size:
            row[token] = -np.inf
    return row


def end_tokens(params: SamplingParams, eos_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens that end this request: its stop tokens, and the model's unless ``ignore_eos``."""
    return params.stop_token_ids if params.ignore_eos else (*eos_ids, *params.stop_token_ids)


def _completing(sequences: Sequence[tuple[int, ...]], output_ids: TokenIds) -> list[int]:
    """Return the last token of each sequence whose other tokens the output ends with."""
    longest = max(map(len, sequences)) - 1
    end = tuple(map(int, output_ids[max(0, len(output_ids) - longest) :])) if longest else ()
    return [
        ids[-1]
        for ids in sequences
        if len(ids) == 1 or (len(ids) <= len(end) + 1 and end[1 - len(ids) :] == ids[:-1])
    ]


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
