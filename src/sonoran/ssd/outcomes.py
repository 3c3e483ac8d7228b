"""Outcome prediction: which (accepted tokens, bonus token) a verification may end with (SSD paper, 4.1.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sonoran.config import Law
from sonoran.errors import ConfigError
from sonoran.sampling import noise
from sonoran.sampling.drafts import rank_candidates
from sonoran.sampling.logits import TokenIds, adjust
from sonoran.sampling.params import SamplingParams
from sonoran.ssd.statistics import OutcomeStatistics
from sonoran.theory.distributions import Floats
from sonoran.types import FloatArray, Origin, Outcome


def outcome_probabilities(scores: Sequence[Floats], rule: Law) -> list[Floats]:
    """Return the probability of each candidate (k, token) for k = 0..K, in the order of the candidates.

    ``scores[k]`` are log odds (``outcomes.score_rows``): for k < K of the sent token, then of the candidates; at k = K
    of candidates only. Coupled and greedy: the target takes what the draft would take if their scores differed by
    noise, so a token's chance is its softmax. Point mass: a proposal that is accepted with p(x), and replaced by one of
    the others otherwise, leaves every token its p, so the same. Rejection: a token of draft probability q is taken to be
    accepted with sqrt(q), between the certainty of equal models and the q of independent draws; the bonus token then is
    one of the others.
    """
    alive, found = 1.0, []
    for k, row in enumerate(scores):
        chances = _softmax(row)
        if k == len(scores) - 1:
            found.append(alive * chances)
            break
        stays, others = float(chances[0]), chances[1:]
        if rule == "rejection":
            total = float(others.sum())
            stays = math.sqrt(stays)
            others = others * ((1.0 - stays) / total) if total > 0.0 else others
        found.append(alive * others)
        alive *= stays
    return found


REFRESH = 16
"""Observations of an origin after which its average is computed anew."""


class AverageOutcomes:
    """The same probabilities from the statistics of past rounds."""

    def __init__(self, statistics: OutcomeStatistics) -> None:
        self._statistics = statistics
        self._known: dict[tuple[Origin, int], tuple[int, list[Floats]]] = {}

    def __call__(self, origin: Origin, sizes: Sequence[int]) -> list[Floats]:
        """Return the probability of the first ``sizes[k]`` candidates at every k, given what was sent."""
        k, epoch = len(sizes) - 1, self._statistics.rounds(origin) // REFRESH
        known = self._known.get((origin, k))
        if known is None or known[0] != epoch:
            lengths, cdfs = self._statistics.lengths(origin, k), self._statistics.cdfs(origin, k)
            known = epoch, [p * np.diff(cdf) for p, cdf in zip(lengths, cdfs, strict=True)]
            self._known[origin, k] = known
        return [
            np.concatenate([chances[:size], np.zeros(max(0, size - len(chances)))])
            for chances, size in zip(known[1], sizes, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class OutcomePrediction:
    """Probabilities of a sequence's candidates at k = 0..K, predicted in two ways."""

    by_confidence: list[Floats]  # of the draft, in this very text
    on_average: list[Floats]

    def mixed(self, weight: float) -> list[Floats]:
        """Return the mixture with that weight of the confidence."""
        return [
            weight * c + (1.0 - weight) * a for c, a in zip(self.by_confidence, self.on_average, strict=True)
        ]


@dataclass(slots=True)
class ConfidenceWeight:
    """The posterior weight of the draft's confidence against the average, by which predicted the outcomes better.

    Both keep a share of at least ``forget`` (a fixed-share mixture), so that a change of text is noticed.
    """

    weight: float = 0.8
    forget: float = 0.02

    def observe(self, prediction: OutcomePrediction, outcome: Outcome, rank: int) -> None:
        """Count an outcome whose bonus token had ``rank`` among the candidates; 0 (none of them) tells nothing."""
        if rank < 1:
            return
        confident = self.weight * float(prediction.by_confidence[outcome.accepted][rank - 1])
        average = (1.0 - self.weight) * float(prediction.on_average[outcome.accepted][rank - 1])
        if confident + average > 0.0:
            share = confident / (confident + average)
            self.weight = self.forget + (1.0 - 2.0 * self.forget) * share


def _softmax(scores: Floats) -> Floats:
    if not len(scores):
        return np.zeros(0)
    largest = float(scores.max())
    weights = np.exp(scores - largest) if math.isfinite(largest) else np.ones(len(scores))
    chances: Floats = weights / weights.sum()
    return chances


def rank_rows(
    rule: Law,
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
    rule: Law,
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
    found: list[Floats] = []
    for k, candidates in enumerate(ranked):
        ids = np.array([*sent[k : k + 1], *candidates], np.int32)
        prefix, position = _prefix(prefix_ids, sent[:k], params), len(prefix_ids) + k
        row = adjust(logits[k], prefix, prompt_length, params, eos_ids, position)
        scores = row[ids].astype(np.float64)
        if not params.greedy:
            scores /= params.temperature
            if rule == "coupled":
                scores += noise.gumbel(seed, position, ids)
        first = int(k < len(sent))
        scores[first:] = np.minimum.accumulate(scores[first:])
        found.append(scores)
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
    if not (params.reads_prefix and len(sent)):
        return prefix_ids
    return np.concatenate([np.asarray(prefix_ids, np.int32), np.asarray(sent, np.int32)])


def _check_sizes(rows: int, sent: int, fan_out: int) -> None:
    if rows != sent + 1 or fan_out != sent + 1:
        raise ConfigError(f"{sent} sent tokens need {sent + 1} rows and fan-outs, got {rows} and {fan_out}")
