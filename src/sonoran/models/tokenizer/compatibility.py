"""May a target and a draft share token ids? Decided on token strings and special tokens, not on sizes.

A vocabulary that goes on where the other ends (padding, tokens added by a fine-tune) shares what comes before: the draft
never proposes what only one of the two has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from sonoran.errors import CompatibilityError
from sonoran.models.tokenizer.tokenizer import Tokenizer

SHOWN = 5  # differing tokens that a report names
MOST_ADDED = 0.1
"""Share of a vocabulary that the other may lack at the end; with more it is no longer a common part that counts."""


def num_shared(target: int, draft: int) -> int | None:
    """Ids below which both have tokens, from their numbers of tokens; None when these are too far apart."""
    low, high = sorted((target, draft))
    return low if high - low <= MOST_ADDED * high else None


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """One id at which the vocabularies differ; None where a vocabulary has no such token."""

    token_id: int
    target: str | None
    draft: str | None


@dataclass(frozen=True, slots=True)
class CompatibilityReport:
    """Outcome of the comparison; ``differences`` are the first few, ``num_differences`` counts them all.

    Of a compatible pair, ids below ``num_shared`` mean the same; ``never_proposed`` are the first few tokens after them,
    which only the target has.
    """

    compatible: bool
    target_vocab_size: int
    draft_vocab_size: int
    num_differences: int
    differences: tuple[TokenDifference, ...]
    special_differences: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]  # role: (target, draft)
    num_shared: int
    never_proposed: tuple[TokenDifference, ...] = ()

    def __str__(self) -> str:
        if self.compatible and self.target_vocab_size == self.draft_vocab_size:
            return f"compatible: the same {self.target_vocab_size} tokens and special tokens"
        if self.compatible:
            return f"compatible in the {self.num_shared} tokens that both have{self.beyond}"
        lines = []
        if self.num_differences:
            named = "; ".join(
                f"id {d.token_id} is {_shown(d.target)} in the target and {_shown(d.draft)} in the draft"
                for d in self.differences
            )
            more = self.num_differences - len(self.differences)
            lines.append(
                f"{self.num_differences} tokens differ: {named}" + (f"; and {more} more" if more else "")
            )
        for role, (target, draft) in self.special_differences.items():
            lines.append(
                f"special tokens at the {role} differ: {list(target)} in the target,"
                f" {list(draft)} in the draft"
            )
        return "; ".join(lines)

    @property
    def beyond(self) -> str:
        """What is told of tokens that only one of the two has; nothing when there are none."""
        lacking, own = self.target_vocab_size - self.num_shared, self.draft_vocab_size - self.num_shared
        if lacking > 0:
            named = ", ".join(_shown(token.target) for token in self.never_proposed)
            more = ", ..." if lacking > len(self.never_proposed) else ""
            ids = f"ids {self.num_shared} to {self.target_vocab_size - 1}"
            return f"; the draft can never propose {ids} ({named}{more}), which it lacks"
        return f"; {own} that only the draft has are left out" if own > 0 else ""


def compare(target: Tokenizer, draft: Tokenizer) -> CompatibilityReport:
    """Compare two tokenizers token by token; padding of either output matrix plays no part."""
    ours, theirs = target.token_strings(), draft.token_strings()
    shared = num_shared(len(ours), len(theirs))
    size = max(len(ours), len(theirs)) if shared is None else shared
    found = (token for token in _side_by_side(ours, theirs, 0, size) if token.target != token.draft)
    first = tuple(islice(found, SHOWN))
    count = len(first) + sum(1 for _ in found)
    our_special, their_special = target.special_tokens(shared), draft.special_tokens(shared)
    special = {
        role: (tokens, their_special[role])
        for role, tokens in our_special.items()
        if tokens != their_special[role]
    }
    return CompatibilityReport(
        shared is not None and not count and not special,
        len(ours),
        len(theirs),
        count,
        first,
        special,
        size,
        tuple(_side_by_side(ours, theirs, size, min(len(ours), size + SHOWN))),
    )


def _side_by_side(
    ours: Sequence[str], theirs: Sequence[str], begin: int, end: int
) -> Iterator[TokenDifference]:
    for i in range(begin, end):
        yield TokenDifference(i, ours[i] if i < len(ours) else None, theirs[i] if i < len(theirs) else None)


def require_compatible(target: Tokenizer, draft: Tokenizer) -> CompatibilityReport:
    """Return the report, or raise CompatibilityError that names the first differing tokens."""
    report = compare(target, draft)
    if not report.compatible:
        raise CompatibilityError(
            f"target and draft cannot be used together: {report}; choose a draft of the target's own family"
        )
    return report


def _shown(token: str | None) -> str:
    return "absent" if token is None else repr(token)
