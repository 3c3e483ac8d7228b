"""From what a user sends to a request that the engine can run, or an error with the numbers."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol

from sonoran.backends.base import Backend
from sonoran.engine.sequence import Request, Sequence
from sonoran.errors import CapacityError, ConfigError
from sonoran.sampling.noise import derive_seed
from sonoran.sampling.params import SamplingParams, VerificationRule
from sonoran.sampling.stops import Detokenizer, StopChecker


class TextTokens(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation."""
        ...

    def detokenizer(self, skip_special_tokens: bool = True, continuation: bool = False) -> Detokenizer:
        """Return a fresh incremental decoder; `continuation` says that its text follows another."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What every request is checked against. Lengths are in tokens."""

    vocab_size: int
    max_model_len: int
    trained_context: int
    kv_capacity: int
    num_speculative_tokens: int  # K; 0 without a drafter
    draft_context: int | None

    @staticmethod
    def of(
        target: Backend, max_model_len: int | None, num_speculative_tokens: int, draft_context: int | None
    ) -> Limits:
        """Derive the limits; ConfigError when the context asked for exceeds the model's or the KV memory."""
        trained = target.config.max_position
        capacity = target.num_blocks * target.block_size
        length = min(trained, capacity) if max_model_len is None else max_model_len
        if length > trained:
            raise ConfigError(f"max_model_len is {length}, but the model was trained for {trained} positions")
        if length > capacity:
            raise ConfigError(
                f"max_model_len is {length}, but {target.num_blocks} KV blocks of {target.block_size} tokens "
                f"hold only {capacity}; give the engine more KV memory or a shorter context"
            )
        return Limits(
            target.config.vocab_size, length, trained, capacity, num_speculative_tokens, draft_context
        )


class Intake:
    """Makes requests; may be used from any thread."""

    def __init__(
        self, limits: Limits, tokenizer: TextTokens, seed: int | None, verification: VerificationRule
    ) -> None:
        """`verification` "rejection" holds for every request, "coupled" unless a request asks otherwise."""
        self.limits = limits
        self._verification = verification
        self._tokenizer = tokenizer
        self._random = random.SystemRandom() if seed is None else random.Random(seed)

    def make(
        self, request_id: str, prompt_ids: Seq[int], params: SamplingParams, prompt: str | None
    ) -> Request:
        """Return a checked request that is not queued yet.

        Raises ConfigError for token ids that the model does not have, CapacityError when it can never fit.
        """
        tokens = [int(token) for token in prompt_ids]
        self._check(tokens, params)
        if self._verification == "rejection":
            params = replace(params, verification="rejection")
        seed = params.seed if params.seed is not None else self._random.getrandbits(63)
        sequences: list[Sequence] = []
        for index in range(params.n):
            sequences.append(
                self._sequence(request_id, tokens, params, derive_seed(seed, index), index, sequences)
            )
        return Request(request_id, prompt, tokens, params, seed, time.perf_counter(), sequences)

    def _sequence(
        self,
        request_id: str,
        tokens: list[int],
        params: SamplingParams,
        seed: int,
        index: int,
        siblings: list[Sequence],
    ) -> Sequence:
        limits = self.limits
        speculation = limits.num_speculative_tokens if params.speculative else 0
        if params.num_speculative_tokens is not None:
            speculation = min(speculation, params.num_speculative_tokens)
        room = limits.max_model_len - len(tokens)
        detokenizer = self._tokenizer.detokenizer(continuation=True)
        return Sequence(
            request_id=request_id,
            index=index,
            params=params,
            seed=seed,
            tokens=list(tokens),
            prompt_length=len(tokens),
            stop=StopChecker(params, self._tokenizer.eos_ids, detokenizer, room),
            max_speculation=speculation,
            max_length=limits.max_model_len,
            draft_context=limits.draft_context,
            siblings=siblings,
        )

    def _check(self, tokens: list[int], params: SamplingParams) -> None:
        limits = self.limits
        if not tokens:
            raise ConfigError("the prompt is empty; give it at least one token")
        bad = next((token for token in tokens if not 0 <= token < limits.vocab_size), None)
        if bad is not None:
            raise ConfigError(
                f"prompt token {bad} does not exist; token ids are 0 to {limits.vocab_size - 1}"
            )
        params.check_vocabulary(limits.vocab_size)
        new = max(1, params.min_tokens)
        if len(tokens) + new > limits.max_model_len:
            raise CapacityError(
                f"a prompt of {len(tokens)} tokens and at least {new} new ones take {len(tokens) + new} "
                f"positions, but max_model_len is {limits.max_model_len} (the model was trained for "
                f"{limits.trained_context}, KV memory holds {limits.kv_capacity})"
            )
