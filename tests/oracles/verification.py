"""Both verification rules for many positions at once, with arrays; nothing of the package is used.

The model has V tokens and its logits depend on the last token only. Round r starts at position ``4 * r`` and
verifies two proposed tokens; what it emits at its first two places is returned.
"""

from dataclasses import dataclass

import numpy as np

from sonoran.sampling.noise import Stream
from tests.oracles import noise, portable

STRIDE = 4


@dataclass
class Table:
    """Scaled logits and weights of every context (row), -inf and 0 for tokens that do not survive."""

    x: np.ndarray
    weights: np.ndarray

    @property
    def probabilities(self):
        return self.weights / self.weights.sum(axis=-1, keepdims=True)


@dataclass
class Randomness:
    """All noise of a number of rounds, for the first two places of each."""

    gumbel: np.ndarray  # [2, rounds, V]
    accept: np.ndarray  # [2, rounds]
    sample: np.ndarray
    draft: np.ndarray


def make_randomness(seed, rounds, vocab, first):
    key = (seed & 0xFFFFFFFF, seed >> 32)
    positions = first + STRIDE * np.arange(rounds)[None, :] + np.arange(2)[:, None]

    def words(block, stream, shape):
        return noise.philox((block, shape & 0xFFFFFFFF, shape >> 32, int(stream)), key).astype(np.int64)

    def uniform(stream):
        block = words(0, stream, positions)
        return (((block[..., 0] << 20) | (block[..., 1] >> 12)) + 0.5) * 2.0**-52

    blocks = np.arange((vocab + 3) // 4)
    high, low = (
        words(blocks, stream, positions[..., None]).reshape(2, rounds, -1)[..., :vocab]
        for stream in (Stream.GUMBEL_HIGH, Stream.GUMBEL_LOW)
    )
    v = (((high << 20) | (low >> 12)) + 0.5) * 2.0**-52
    gumbel = -portable.log(-portable.log(1.0 - v))
    return Randomness(gumbel, uniform(Stream.ACCEPT), uniform(Stream.SAMPLE), uniform(Stream.DRAFT))


def inverse(weights, u):
    """Return, row by row, the first index whose cumulated weight exceeds u times the total."""
    sums = np.cumsum(weights, axis=-1)
    return np.argmax(sums > (u * sums[:, -1])[:, None], axis=-1)


def run_rounds(rule, target, draft, chosen, start, randomness, vocab):
    """Emit the first two tokens of every round; the second is -1 where the first proposal was rejected.

    ``draft`` is a Table, the string "uniform", or None with ``chosen[context]`` the token of an n-gram.
    """
    rounds = randomness.accept.shape[1]
    context = np.full(rounds, start)
    emitted = np.full((2, rounds), -1)
    alive = np.ones(rounds, bool)
    rows = np.arange(rounds)
    for place in range(2):
        gumbel = randomness.gumbel[place]
        if draft is None:
            proposed = chosen[context]
            q = (np.arange(vocab) == proposed[:, None]).astype(float)
        elif isinstance(draft, str):
            proposed = (randomness.draft[place] * vocab).astype(int)
            q = np.full((rounds, vocab), 1 / vocab)
        else:
            q = draft.probabilities[context]
            if rule == "coupled":
                proposed = np.argmax(draft.x[context] + gumbel, axis=-1)
            else:
                proposed = inverse(draft.weights[context], randomness.draft[place])
        if rule == "coupled":
            token = np.argmax(target.x[context] + gumbel, axis=-1)
        else:
            p = target.probabilities[context]
            accepted = randomness.accept[place] * q[rows, proposed] < p[rows, proposed]
            residual = np.maximum(p - q, 0.0)
            empty = residual.sum(axis=-1) <= 0
            residual[empty] = p[empty]
            token = np.where(accepted, proposed, inverse(residual, randomness.sample[place]))
        emitted[place, alive] = token[alive]
        alive = alive & (token == proposed)
        context = token
    return emitted
