"""Verification of a speculation by the target: the same function decodes with and without speculation.

``coupled``: the target's own token at a position is the argmax of log p plus Gumbel noise that depends on
(seed, position, token) only, and a proposed token is accepted when it is that token (Daliri, Musco, Suresh,
"Coupling without communication and drafter-invariant speculative decoding", arXiv 2408.07978). ``rejection``:
accept with probability min(1, p/q), else draw from max(p - q, 0) (Leviathan et al., arXiv 2211.17192; Chen et
al., arXiv 2302.01318).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sonoran.config import Verification
from sonoran.errors import ConfigError
from sonoran.sampling import noise, rowops
from sonoran.sampling.logits import TokenIds, adjust, cut_of
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import ProposalDistribution, Speculation
from sonoran.sampling.structure import Constraint
from sonoran.types import BoolArray, FloatArray, TokenLogprob


@dataclass(frozen=True, slots=True)
class Verified:
    """``tokens`` are the ``accepted`` proposed tokens, then the bonus; ``logprobs`` has one for each."""

    accepted: int
    tokens: list[int]
    logprobs: list[TokenLogprob] | None = None

    @property
    def bonus(self) -> int:
        """The token that the target itself contributed."""
        return self.tokens[-1]


def verify(
    rule: Verification,
    target_rows: FloatArray,
    prefix_ids: TokenIds,
    prompt_length: int,
    speculation: Speculation,
    params: SamplingParams,
    seed: int,
    eos_ids: Sequence[int],
    constraint: Constraint | None = None,
) -> Verified:
    """Verify K proposed tokens after ``prefix_ids``; with an empty speculation, sample one token.

    ``target_rows`` is float32[K + 1, V]: row i holds the logits of position ``len(prefix_ids) + i``, after
    the first i proposed tokens. The first ``prompt_length`` ids of the prefix are the prompt. ``eos_ids`` are
    the model's end-of-sequence tokens; ``constraint`` says which tokens fit the form that the text
    must have. Raises ConfigError when shapes do not fit or the rejection rule lacks a usable distribution,
    NumericsError when a row is not finite.
    """
    if target_rows.ndim != 2 or target_rows.shape[0] != len(speculation) + 1:
        raise ConfigError(
            f"{len(speculation)} proposed tokens need {len(speculation) + 1} rows of logits; "
            f"got shape {target_rows.shape}"
        )
    tokens: list[int] = []
    for i, row in enumerate(target_rows):
        mask = None if constraint is None else constraint.mask(tokens)
        adjusted = _adjust_row(row, prefix_ids, tokens, prompt_length, params, eos_ids, mask)
        position = len(prefix_ids) + i
        proposed = speculation.tokens[i] if i < len(speculation) else None
        if rule == "coupled" or params.greedy:
            token = _own_token(adjusted, params, seed, position)
        elif proposed is None:
            bits = noise.uniform_bits(seed, position, noise.Stream.SAMPLE)
            token = rowops.inverse_sample(adjusted, cut_of(params), bits)
        else:
            token = _accept_or_resample(
                adjusted, params, seed, position, proposed, _distribution(speculation, i)
            )
        tokens.append(token)
        if token != proposed:
            break
    logprobs = None
    if params.logprobs is not None:
        count = params.logprobs
        logprobs = [token_logprob(target_rows[i], token, count) for i, token in enumerate(tokens)]
    return Verified(len(tokens) - 1, tokens, logprobs)


def token_logprob(row: FloatArray, token: int, count: int) -> TokenLogprob:
    """Return the log-probability of a token under softmax(row), and of the ``count`` most likely tokens."""
    row = rowops.as_row(row)
    normaliser = rowops.logsumexp(row)
    top = rowops.top(row, count) if count else ()
    return TokenLogprob(
        token_id=token,
        logprob=float(row[token]) - normaliser,
        top=tuple((int(other), float(row[other]) - normaliser) for other in top),
    )


def _adjust_row(
    row: FloatArray,
    prefix_ids: TokenIds,
    tokens: list[int],
    prompt_length: int,
    params: SamplingParams,
    eos_ids: Sequence[int],
    mask: BoolArray | None,
) -> FloatArray:
    position = len(prefix_ids) + len(tokens)
    if params.reads_prefix and tokens:
        prefix_ids = np.concatenate([np.asarray(prefix_ids, np.int32), np.asarray(tokens, np.int32)])
    if mask is None:
        return adjust(row, prefix_ids, prompt_length, params, eos_ids, position)
    fitting: FloatArray = np.where(mask, rowops.as_row(row), np.float32(-np.inf))
    adjusted = adjust(fitting, prefix_ids, prompt_length, params, eos_ids, position)
    # What must come next comes, even if every such token is forbidden otherwise.
    return adjusted if np.isfinite(adjusted).any() else fitting


def _own_token(row: FloatArray, params: SamplingParams, seed: int, position: int) -> int:
    if params.greedy:
        return rowops.argmax(row)
    return int(rowops.coupled_top(row, cut_of(params), seed, position, 1)[0])


def _distribution(speculation: Speculation, index: int) -> ProposalDistribution:
    token = speculation.tokens[index]
    if not speculation.distributions:
        raise ConfigError(
            "the rejection rule needs the distribution that each proposed token was drawn from; got none"
        )
    q = speculation.distributions[index]
    if not q.probability(token) > 0.0:
        raise ConfigError(
            f"proposed token {token} has probability 0 under its distribution, so it was not drawn from it"
        )
    return q


def _accept_or_resample(
    row: FloatArray, params: SamplingParams, seed: int, position: int, proposed: int, q: ProposalDistribution
) -> int:
    """Return the proposed token with probability min(1, p/q), else a draw of the residual."""
    cut = cut_of(params)
    weight, total = rowops.mass(row, cut, proposed)
    if noise.uniform(seed, position, noise.Stream.ACCEPT) * q.probability(proposed) < weight / total:
        return proposed
    kept = rowops.select(row, cut)
    residual = np.maximum(kept.weights / total - q.on(kept.ids, proposed), 0.0)
    sums = np.cumsum(residual)
    if not sums[-1] > 0.0:
        # Only rounding can empty the residual after a rejection: p equals q then, and p is what to draw from.
        return rowops.inverse_sample(row, cut, noise.uniform_bits(seed, position, noise.Stream.SAMPLE))
    wanted = noise.uniform(seed, position, noise.Stream.SAMPLE) * sums[-1]
    # The first token whose sum exceeds it has a positive residual; the product can round up to the last sum.
    index = min(
        int(np.searchsorted(sums, wanted, side="right")), int(np.searchsorted(sums, sums[-1], side="left"))
    )
    return int(kept.ids[index])
