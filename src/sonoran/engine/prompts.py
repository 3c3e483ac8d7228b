"""The shapes in which prompts and parameters may be given, brought to one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from sonoran.errors import ConfigError
from sonoran.sampling.params import SamplingParams

Prompt = str | Sequence[int]
"""A text, which is encoded with the model's special tokens, or token ids, which are taken as they are."""

Message = Mapping[str, Any]
Params = SamplingParams | Sequence[SamplingParams] | None


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return a list of prompts from one text, one list of token ids, or a list of either."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise ConfigError(f"a prompt must be a text or a list of token ids, got {type(prompts).__name__}")
    if prompts and all(isinstance(item, int) for item in prompts):
        return [cast("Sequence[int]", prompts)]
    for item in prompts:
        if not isinstance(item, (str, Sequence)):
            raise ConfigError(f"a prompt must be a text or a list of token ids, got {item!r:.80}")
    return list(cast("Sequence[Prompt]", prompts))


def as_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """Return a list of conversations from one (a list of messages) or from several."""
    if not messages or isinstance(messages[0], Mapping):
        return [cast("Sequence[Message]", messages)]
    return list(cast("Sequence[Sequence[Message]]", messages))


def pair(prompts: Sequence[Prompt], params: Params) -> list[tuple[Prompt, SamplingParams]]:
    """Return each prompt with its parameters: the same for all, or one each."""
    if params is None or isinstance(params, SamplingParams):
        return [(prompt, params or SamplingParams()) for prompt in prompts]
    if len(params) != len(prompts):
        raise ConfigError(
            f"{len(prompts)} prompts need as many sampling parameters (or one), got {len(params)}"
        )
    return list(zip(prompts, params, strict=True))
