"""Both rules emit the target's distribution, whatever the draft and the parameters.

For each case an array implementation of the rule runs 200 000 rounds and a chi-square test compares what it
emits with the target's distribution, computed by a naive implementation that shares no code. Then ``verify``
itself runs the first of these rounds, with the same noise, and must emit the same tokens. If the distribution of
``verify`` were off by 0.01 in total variation, at least 1 % of the rounds would differ on average.
"""

import numpy as np
import pytest
from scipy import stats

from sonoran.sampling import noise, rowops
from sonoran.sampling.drafts import draft_sample
from sonoran.sampling.logits import adjust, cut_of
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import Speculation
from sonoran.sampling.verification import verify
from tests.oracles.distribution import naive_distribution
from tests.oracles.verification import STRIDE, Table, make_randomness, run_rounds

VOCAB = 6
ROUNDS = 200_000
CHECKED = 700
SEED = 20_240
PROMPT = [2, 4, 4]
TRUNCATIONS = {
    "plain": {},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.85},
    "min_p": {"min_p": 0.12},
    "penalties": {
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.2,
        "logit_bias": {1: 0.8},
        "top_p": 0.97,
    },
}

_rng = np.random.default_rng(5)
TARGET = (1.2 * _rng.normal(size=(VOCAB, VOCAB))).astype(np.float32)
GOOD = (TARGET + 0.4 * _rng.normal(size=(VOCAB, VOCAB))).astype(np.float32)
BAD = (1.5 * _rng.normal(size=(VOCAB, VOCAB))).astype(np.float32)
NGRAM = _rng.integers(0, VOCAB, VOCAB)


@pytest.fixture(scope="module")
def randomness():
    return make_randomness(SEED, ROUNDS, VOCAB, len(PROMPT))


def context_of(index):
    """Return (last token, tokens emitted) of a context: VOCAB is the start, the others follow a token."""
    return (PROMPT[-1], []) if index == VOCAB else (index, [index])


def make_table(logits, params):
    x = np.full((VOCAB + 1, VOCAB), -np.inf)
    weights = np.zeros((VOCAB + 1, VOCAB), np.int64)
    for index in range(VOCAB + 1):
        last, output = context_of(index)
        row = adjust(logits[last], PROMPT + output, len(PROMPT), params)
        kept = rowops.select(row, cut_of(params))
        x[index, kept.ids], weights[index, kept.ids] = kept.x, kept.weights
    return Table(x, weights)


def target_distribution(index, params):
    last, output = context_of(index)
    return naive_distribution(TARGET[last], PROMPT + output, len(PROMPT), params)


def chi_square(counts, distribution):
    """Return the p-value of counts under {token: probability}; 0 if an impossible token was emitted."""
    expected = np.array([distribution.get(token, 0.0) for token in range(VOCAB)])
    if counts[expected == 0].sum() > 0:
        return 0.0
    possible = expected > 0
    if possible.sum() == 1:
        return 1.0
    return float(stats.chisquare(counts[possible], counts.sum() * expected[possible] / expected.sum()).pvalue)


def propose(rule, kind, params, prompt):
    """Return the speculation of two tokens that the draft of this kind makes after the prompt."""
    tokens, distributions = [], []
    for _ in range(2):
        context = prompt + tokens
        position = len(context)
        if kind == "ngram":
            tokens.append(int(NGRAM[context[-1]]))
        elif kind == "random":
            tokens.append(int(noise.uniform(SEED, position, noise.Stream.DRAFT) * VOCAB))
        else:
            logits = (GOOD if kind == "good" else BAD)[context[-1]]
            token, q = draft_sample(rule, logits, context, len(prompt), params, SEED, position)
            tokens.append(token)
            distributions.append(q)
    if kind == "ngram":
        return Speculation.chosen(tokens)
    if kind == "random":
        return Speculation.uniform(tokens, VOCAB)
    return Speculation(tuple(tokens), tuple(distributions) if rule == "rejection" else ())


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("kind", ["good", "bad", "random", "ngram"])
@pytest.mark.parametrize("truncation", TRUNCATIONS)
@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.3])
def test_emitted_distribution_is_the_targets(rule, kind, truncation, temperature, randomness):
    params = SamplingParams(temperature=temperature, **TRUNCATIONS[truncation])
    target = make_table(TARGET, params)
    draft = {"good": GOOD, "bad": BAD}.get(kind)
    table = make_table(draft, params) if draft is not None else "uniform" if kind == "random" else None
    chosen = np.append(NGRAM, NGRAM[PROMPT[-1]])
    emitted = run_rounds(rule, target, table, chosen, VOCAB, randomness, VOCAB)

    assert chi_square(np.bincount(emitted[0], minlength=VOCAB), target_distribution(VOCAB, params)) > 1e-4
    for first in range(VOCAB):
        second = emitted[1, (emitted[0] == first) & (emitted[1] >= 0)]
        if len(second) > 500:
            assert chi_square(np.bincount(second, minlength=VOCAB), target_distribution(first, params)) > 1e-4

    for index in range(CHECKED):
        # Long enough to put the round at its position; the penalties see the same set of tokens as in PROMPT.
        length = len(PROMPT) + STRIDE * index
        prompt = [PROMPT[0]] * (length - 1) + [PROMPT[-1]]
        speculation = propose(rule, kind, params, prompt)
        rows = TARGET[[prompt[-1], *speculation.tokens]]
        found = verify(rule, rows, prompt, length, speculation, params, SEED, ())
        expected = [token for token in emitted[:, index].tolist() if token >= 0]
        assert found.tokens[:2] == expected
        assert found.tokens[: found.accepted] == list(speculation.tokens[: found.accepted])


def test_the_chi_square_test_finds_a_bias_of_one_percent():
    """The sample is large enough: a distribution that is off by 0.01 in total variation is rejected."""
    rng = np.random.default_rng(0)
    params = SamplingParams()
    true = target_distribution(VOCAB, params)
    order = sorted(true, key=true.__getitem__)
    for heavier, lighter in ((order[-1], order[-2]), (order[0], order[-1]), (order[2], order[3])):
        biased = dict(true)
        biased[heavier] += 0.01
        biased[lighter] -= 0.01
        sample = rng.multinomial(ROUNDS, [biased[token] for token in range(VOCAB)])
        assert chi_square(sample, true) < 1e-4
        assert chi_square(rng.multinomial(ROUNDS, [true[token] for token in range(VOCAB)]), true) > 1e-4
