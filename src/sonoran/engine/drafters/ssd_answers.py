"""Answers of a draft worker, checked before anything is made of them: a worker may be broken, or hostile."""

from __future__ import annotations

from sonoran.draftworker.laws import decode_law
from sonoran.draftworker.messages import Answer, Item
from sonoran.errors import WorkerError
from sonoran.sampling.params import VerificationRule
from sonoran.sampling.proposals import EMPTY, Law, SparseLaw, Speculation, UniformLaw

_LONGEST_FAN_OUT = 1024


def read_answer(answer: Answer, item: Item, rule: VerificationRule, target_vocab: int) -> Speculation:
    """Return the speculation in an answer to ``item``.

    Ids must lie below ``target_vocab``. Under the rejection rule every token needs a law that gives it a positive
    probability. Raises WorkerError for an answer that breaks a rule; there is then no speculation to trust.
    """
    tokens = answer.tokens
    if (answer.sequence, answer.generation) != (item.sequence, item.generation):
        raise WorkerError(f"an answer about sequence {answer.sequence} instead of {item.sequence}")
    if len(tokens) > item.wanted:
        raise WorkerError(f"{len(tokens)} tokens instead of at most {item.wanted}")
    for token in tokens:
        if not 0 <= token < target_vocab:
            raise WorkerError(f"token {token} in a vocabulary of {target_vocab}")
    if len(answer.fan_out) > _LONGEST_FAN_OUT:
        raise WorkerError(f"a fan-out of {len(answer.fan_out)} positions")
    if not tokens:
        return EMPTY
    if rule == "coupled":
        return Speculation(tuple(tokens))
    if len(answer.laws) != len(tokens):
        raise WorkerError(f"{len(answer.laws)} laws for {len(tokens)} tokens")
    laws = tuple(decode_law(law) for law in answer.laws)
    for token, law in zip(tokens, laws, strict=True):
        _check_law(law, token, target_vocab)
    return Speculation(tuple(tokens), laws)


def _check_law(law: Law, token: int, target_vocab: int) -> None:
    largest = 0
    if isinstance(law, SparseLaw):
        largest = int(law.ids[-1])
    elif isinstance(law, UniformLaw):
        largest = law.size - 1
    if largest >= target_vocab:
        raise WorkerError(f"a law that reaches token {largest} in a vocabulary of {target_vocab}")
    if not law.probability(token) > 0.0:
        raise WorkerError(f"a law under which token {token} cannot be drawn")
