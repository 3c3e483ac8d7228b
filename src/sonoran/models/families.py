"""Families of models: which small model drafts for the others, told by what the files say and not by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sonoran.models.registry import DEFAULT_DRAFT

SMALLER = 2
"""A draft has at most 1 / SMALLER of the target's parameters, or it cannot make it faster."""


@dataclass(frozen=True, slots=True)
class Family:
    """Models that share a vocabulary. ``tokens`` are some that only this family has at these ids."""

    name: str
    architectures: tuple[str, ...]
    tokens: Mapping[int, str]
    draft: str  # as resolve_model takes it
    draft_parameters: float

    def has(self, architecture: str, tokens: Sequence[str]) -> bool:
        """True for a model of the family."""
        return architecture in self.architectures and all(
            i < len(tokens) and tokens[i] == token for i, token in self.tokens.items()
        )


FAMILIES = (
    Family(
        "Qwen2.5",
        ("qwen2",),
        {0: "!", 151643: "<|endoftext|>", 151645: "<|im_end|>", 151664: "<|file_sep|>"},
        DEFAULT_DRAFT,
        494e6,
    ),
    Family(
        "SmolLM2",
        ("llama",),
        {0: "<|endoftext|>", 2: "<|im_end|>", 16: "<empty_output>", 49151: "ectable"},
        "smollm2-135m-instruct",
        135e6,
    ),
)


def family_draft(architecture: str, tokens: Sequence[str], parameters: float) -> str | None:
    """Return the draft of a target's family, None when none is known or none would be small enough.

    ``tokens`` is the target's vocabulary by id, ``parameters`` counts its weights.
    """
    for family in FAMILIES:
        if family.has(architecture, tokens):
            return family.draft if family.draft_parameters * SMALLER <= parameters else None
    return None
