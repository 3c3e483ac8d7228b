"""Outcome prediction: which (accepted tokens, bonus token) a verification may end with (SSD paper, 4.1.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sonoran.drafting.fan_out import Floats
from sonoran.errors import ConfigError
from sonoran.sampling import noise
from sonoran.sampling.distribution import TokenIds, adjust
from sonoran.sampling.drafts import rank_candidates
from sonoran.sampling.params import SamplingParams, VerificationRule
from sonoran.types import FloatArray, Outcome


def rank_rows(
    rule: VerificationRule,
    logits: FloatArray,
    sent: Sequence[int],
    depths: Sequence[int],
    prefix_ids: TokenIds,
    prompt_length: int,
    params: SamplingParams,
    seed: int,
    eos_ids: Sequence[int] = (),
) -> list[list[int]]:
    """Rank the bonus candidates of every k = 0..K, most likely first, ``depths[k]`` of them.

    ``logits`` is float32[K + 1, V], the draft's rows after the prefix (which ends with the last bonus
    token) and 0..K sent tokens. Under the coupled rule the candidates are ranked by the noise of the bonus
    token's own position. The token sent for a position cannot be its bonus token, so it is left out before
    the first ``depths[k]`` are taken; nothing was sent at k = K. Raises ConfigError when sizes do not fit.
    """
    _check_sizes(len(logits), len(sent), len(depths))
    ranked = []
    for k, depth in enumerate(depths):
        context = _prefix(prefix_ids, sent[:k], params)
        ranked.append(
            rank_candidates(
                logits[k],
                context,
                params,
                seed,
                len(prefix_ids) + k,
                rule,
                depth,
                sent[k] if k < len(sent) else None,
                prompt_length=prompt_length,
                eos_ids=eos_ids,
            )
            if depth > 0
            else []
        )
    return ranked


def score_rows(
    rule: VerificationRule,
    logits: FloatArray,
    sent: Sequence[int],
    ranked: Sequence[Sequence[int]],
    prefix_ids: TokenIds,
    prompt_length: int,
    params: SamplingParams,
    seed: int,
    eos_ids: Sequence[int] = (),
) -> list[Floats]:
    """Return the draft's scores of the sent token (for k < K), then of the candidates of every k, in order.

    Differences are log odds: greedy the logits, otherwise logits over the temperature, under the coupled rule plus the
    noise that the target will add there too. Arguments are those of ``rank_rows`` with its result. Scores of
    candidates never rise: one that the draft's own truncation put last is not likelier than those before it. Raises
    ConfigError when sizes do not fit.
    """
    _check_sizes(len(logits), len(sent), len(ranked))
    ids = [np.asarray([*sent[k : k + 1], *row], np.int64) for k, row in enumerate(ranked)]
    found: list[Floats] = []
    for k, tokens in enumerate(ids):
        prefix, position = _prefix(prefix_ids, sent[:k], params), len(prefix_ids) + k
        row = adjust(logits[k], prefix, prompt_length, params, eos_ids, position)
        found.append(row[tokens].astype(np.float64))
    if not params.greedy:
        sizes = [len(tokens) for tokens in ids]
        scores = np.concatenate(found) / params.temperature
        if rule == "coupled":
            positions = np.repeat(len(prefix_ids) + np.arange(len(ids)), sizes)
            scores = scores + noise.gumbel(seed, positions, np.concatenate(ids))
        found = np.split(scores, np.cumsum(sizes)[:-1])
    for k, values in enumerate(found):
        first = int(k < len(sent))
        values[first:] = np.minimum.accumulate(values[first:])
    return found


def predict_outcomes(
    ranked: Sequence[Sequence[int]], sent: Sequence[int], fan_out: Sequence[int]
) -> list[Outcome]:
    """Return the guessed outcomes, ordered by k and then by rank: the branches of the speculation tree.

    ``ranked[k]`` holds candidates for the bonus token after exactly k accepted tokens, best first; the
    first ``fan_out[k]`` different ones that were not sent are taken, fewer if the row ends. k = 0 is
    guessed like any other, and at k = K nothing is left out. Raises ConfigError when sizes do not fit.
    """
    _check_sizes(len(ranked), len(sent), len(fan_out))
    branches: list[Outcome] = []
    for k, (row, size) in enumerate(zip(ranked, fan_out, strict=True)):
        seen = {sent[k]} if k < len(sent) else set()
        taken = 0
        for token in row:
            if taken == size:
                break
            if token not in seen:
                seen.add(token)
                branches.append(Outcome(k, int(token)))
                taken += 1
    return branches


def bonus_rank(ranked: Sequence[Sequence[int]], sent: Sequence[int], outcome: Outcome) -> int:
    """Return the 1-based rank of the bonus token among the candidates of its position, 0 if it is not there.

    Ranks are counted as ``predict_outcomes`` takes guesses, so ``rank <= F`` is a hit for fan-out F at that
    position. Raises ConfigError for an outcome of another speculation.
    """
    _check_sizes(len(ranked), len(sent), len(ranked))
    if not 0 <= outcome.accepted < len(ranked):
        raise ConfigError(f"{outcome.accepted} accepted tokens of a speculation of {len(sent)}")
    guesses = predict_outcomes(
        ranked, sent, [len(row) if k == outcome.accepted else 0 for k, row in enumerate(ranked)]
    )
    return guesses.index(outcome) + 1 if outcome in guesses else 0


def _prefix(prefix_ids: TokenIds, sent: Sequence[int], params: SamplingParams) -> TokenIds:
    """Return what precedes a position; only penalties look at it."""
    if not (params.has_penalties and len(sent)):
        return prefix_ids
    return np.concatenate([np.asarray(prefix_ids, np.int32), np.asarray(sent, np.int32)])


def _check_sizes(rows: int, sent: int, fan_out: int) -> None:
    if rows != sent + 1 or fan_out != sent + 1:
        raise ConfigError(f"{sent} sent tokens need {sent + 1} rows and fan-outs, got {rows} and {fan_out}")
