"""May a target and a draft share token ids? Decided on token strings and special tokens, never on sizes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from sonoran.errors import CompatibilityError
from sonoran.models.tokenizer.tokenizer import Tokenizer

SHOWN = 5  # differing tokens that a report names


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """One id at which the vocabularies differ; None where a vocabulary has no such token."""

    token_id: int
    target: str | None
    draft: str | None


@dataclass(frozen=True, slots=True)
class CompatibilityReport:
    """Outcome of the comparison; ``differences`` are the first few, ``num_differences`` counts them all."""

    compatible: bool
    target_vocab_size: int
    draft_vocab_size: int
    num_differences: int
    differences: tuple[TokenDifference, ...]
    special_differences: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]  # role: (target, draft)

    def __str__(self) -> str:
        if self.compatible:
            return f"compatible: the same {self.target_vocab_size} tokens and special tokens"
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


def compare(target: Tokenizer, draft: Tokenizer) -> CompatibilityReport:
    """Compare two tokenizers token by token; padding of either output matrix plays no part."""
    ours, theirs = target.token_strings(), draft.token_strings()
    size = max(len(ours), len(theirs))
    found = (
        TokenDifference(i, ours[i] if i < len(ours) else None, theirs[i] if i < len(theirs) else None)
        for i in range(size)
        if i >= len(ours) or i >= len(theirs) or ours[i] != theirs[i]
    )
    first = tuple(islice(found, SHOWN))
    count = len(first) + sum(1 for _ in found)
    our_special, their_special = target.special_tokens(), draft.special_tokens()
    special = {
        role: (tokens, their_special[role])
        for role, tokens in our_special.items()
        if tokens != their_special[role]
    }
    return CompatibilityReport(not count and not special, len(ours), len(theirs), count, first, special)


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
