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
        "DeepSeek-R1-Distill-Qwen",
        ("qwen2",),
        {0: "!", 151643: "<｜end▁of▁sentence｜>", 151644: "<｜User｜>", 151646: "<｜begin▁of▁sentence｜>"},
        "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF:Q4_K_M",
        1777e6,
    ),
    Family(
        "Qwen3",
        ("qwen3", "qwen3moe"),
        {0: "!", 151643: "<|endoftext|>", 151645: "<|im_end|>", 151667: "<think>"},
        "Qwen/Qwen3-0.6B-GGUF:Q8_0",
        596e6,
    ),
    Family(
        "Llama 3.1 to 3.3",
        ("llama",),
        {128000: "<|begin_of_text|>", 128008: "<|eom_id|>", 128009: "<|eot_id|>", 128010: "<|python_tag|>"},
        "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
        1236e6,
    ),
    Family(
        "Gemma 3",
        ("gemma3",),
        {2: "<bos>", 105: "<start_of_turn>", 106: "<end_of_turn>"},
        "ggml-org/gemma-3-270m-it-GGUF:Q8_0",
        268e6,
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
