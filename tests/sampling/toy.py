"""A toy language model, its drafts, and decoding loops with and without speculation."""

from dataclasses import dataclass

import numpy as np

from sonoran.sampling.drafts import draft_sample
from sonoran.sampling.proposals import EMPTY, Speculation
from sonoran.sampling.verification import verify

EOS = (0,)


@dataclass
class Toy:
    """Logits that depend on the last two tokens."""

    table: np.ndarray  # [V, V, V]

    @staticmethod
    def random(seed, vocab, spread=2.0):
        rng = np.random.default_rng(seed)
        return Toy((spread * rng.normal(size=(vocab, vocab, vocab))).astype(np.float32))

    def near(self, seed, distance):
        rng = np.random.default_rng(seed)
        return Toy((self.table + distance * rng.normal(size=self.table.shape)).astype(np.float32))

    def row(self, context):
        return self.table[context[-2], context[-1]]


def decode(target, drafter, lengths, prompt, params, seed, count, rule):
    """Generate ``count`` tokens; round i proposes ``lengths[i % len]``. Return ids, acceptance, logprobs."""
    tokens, proposed, accepted, logprobs, index = list(prompt), 0, 0, [], 0
    while len(tokens) < len(prompt) + count:
        length = lengths[index % len(lengths)]
        index += 1
        speculation = drafter(tokens, length, len(prompt)) if length else EMPTY
        contexts = [tokens + list(speculation.tokens[:i]) for i in range(len(speculation) + 1)]
        rows = np.stack([target.row(context) for context in contexts])
        result = verify(rule, rows, tokens, len(prompt), speculation, params, seed, EOS)
        tokens += result.tokens
        logprobs += result.logprobs or []
        proposed += len(speculation)
        accepted += result.accepted
    return tokens[: len(prompt) + count], accepted / max(1, proposed), logprobs[:count]


def model_drafter(model, rule, params, seed):
    def draft(tokens, length, prompt_length):
        context, distributions = list(tokens), []
        for _ in range(length):
            row, position = model.row(context), len(context)
            token, q = draft_sample(rule, row, context, prompt_length, params, seed, position, EOS)
            context.append(token)
            distributions.append(q)
        return Speculation(tuple(context[len(tokens) :]), tuple(distributions) if rule == "rejection" else ())

    return draft


def ngram_drafter(tokens, length, prompt_length):
    return Speculation.chosen([tokens[-1 - (i % 3)] for i in range(length)])


def random_drafter(vocab, seed):
    rng = np.random.default_rng(seed)
    return lambda tokens, length, prompt_length: Speculation.uniform(
        rng.integers(0, vocab, length).tolist(), vocab
    )
