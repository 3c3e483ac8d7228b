"""Top-up: whether a speculation that was cut short is worth waiting for.

When the outcome arrives before the tree is finished, the answer may be what is there, or the branch that won may be
drafted on, while the target waits. One more token at place j + 1 is emitted if all before it and itself are accepted,
which has probability a^(j + 1); waiting for it costs the tokens that would have been emitted meanwhile. Answering early
is right when that is more. Without this rule a draft that is a little too slow is trapped: short speculations make
short verifications, which leave less time to draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """Tokens per millisecond over the last rounds, all sequences of a batch together."""

    weight: float = 0.1
    tokens: float = 0.0
    milliseconds: float = 0.0

    def observe(self, tokens: int, milliseconds: float) -> None:
        """Count one round."""
        keep = 1.0 - self.weight
        self.tokens = keep * self.tokens + self.weight * tokens
        self.milliseconds = keep * self.milliseconds + self.weight * milliseconds

    @property
    def rate(self) -> float:
        """Tokens per millisecond; 0 before the first round."""
        return self.tokens / self.milliseconds if self.milliseconds > 0.0 else 0.0


def goals(
    drafted: Sequence[int],
    wanted: Sequence[int],
    acceptance: float,
    rate: float,
    pass_ms: Callable[[int], float],
) -> list[int]:
    """Return how many tokens each speculation should have before it is sent.

    ``drafted`` tokens are there, ``wanted`` is the most; ``pass_ms(n)`` is the time of a draft pass that extends n
    sequences at once. Passes go on while the tokens they are expected to add exceed what waiting costs.
    """
    lengths = list(drafted)
    while growing := [i for i, length in enumerate(lengths) if length < wanted[i]]:
        gain = sum(acceptance ** (lengths[i] + 1) for i in growing)
        if gain <= rate * pass_ms(len(growing)):
            break
        for i in growing:
            lengths[i] += 1
    return lengths
