"""What a tokenizer knows besides its merges, whichever file it came from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sonoran.tokenization.spelling import Spelling

END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
)
"""Tokens that end a generation wherever they are special, as llama.cpp has it: files often name only one."""

_PADDING = re.compile(r"\[PAD(\d+)\]")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token strings by id, without padding, and the roles that tokens play.

    ``special`` tokens are dropped from decoded text on request; ``added`` tokens (special ones included) are
    matched whole in a text. ``prefix`` and ``suffix`` are what ``add_special_tokens`` puts around a text.
    """

    tokens: tuple[str, ...]
    padded_size: int
    spelling: Spelling
    special: frozenset[int]
    added: frozenset[int]
    eos_ids: tuple[int, ...]
    bos_id: int | None = None
    eos_id: int | None = None
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    prefix_space: bool = False  # encoding puts a space before a text, decoding removes it
    named: Mapping[str, str] = field(
        default_factory=dict
    )  # bos_token, eos_token, ... as chat templates use them
    chat_templates: Mapping[str, str] = field(default_factory=dict)  # by name; "default" is the usual one


def real_size(tokens: Sequence[str]) -> int:
    """Number of tokens before the trailing ``[PAD<id>]`` entries that only fill the embedding matrix."""
    size = len(tokens)
    while size:
        match = _PADDING.fullmatch(tokens[size - 1])
        if match is None or int(match[1]) != size - 1:
            break
        size -= 1
    return size


def end_ids(
    tokens: Sequence[str], special: frozenset[int], declared: Iterable[int | None]
) -> tuple[int, ...]:
    """Sorted ids that end a generation: those that the files declare, and well-known special tokens."""
    known = {i for i in special if tokens[i] in END_TOKENS}
    return tuple(sorted(known | {i for i in declared if i is not None and 0 <= i < len(tokens)}))
