"""A request and its sequences, as the engine sees them."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Protocol

from sonoran.backends.base import Backend
from sonoran.config import Verification
from sonoran.engine.grammar import Grammar, Grammars
from sonoran.engine.kv import BlockTable
from sonoran.engine.stats import SequenceStats
from sonoran.errors import CapacityError, ConfigError, SonoranError
from sonoran.sampling.noise import derive_seed
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.stops import Detokenizer, StopChecker
from sonoran.types import FinishReason, Outcome, TokenLogprob


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of a request. `tokens` only ever grows; the first `computed` of them are in KV memory."""

    request_id: str
    index: int  # number of the sample
    params: SamplingParams
    seed: int
    tokens: list[int]
    prompt_length: int
    stop: StopChecker
    max_speculation: int  # K asked for; 0 when speculation is off
    max_length: int  # tokens that the target can see
    draft_context: int | None  # tokens that the draft can see
    siblings: list[Sequence] = field(default_factory=list, repr=False)
    id: int = -1  # unique in the engine once the request is queued
    grammar: Grammar | None = None  # the form that the text must have, where it is
    table: BlockTable = field(default_factory=BlockTable)
    computed: int = 0
    outcome: Outcome | None = None  # of the drafter's last speculation
    num_cached: int = 0
    num_preemptions: int = 0
    text: str = ""  # what may be shown; never taken back
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # of its tokens but the first
    stats: SequenceStats = field(default_factory=SequenceStats)

    @property
    def remaining(self) -> int:
        """Committed tokens that are not in KV memory yet: 1 while decoding, more while filling."""
        return len(self.tokens) - self.computed

    @property
    def output_ids(self) -> list[int]:
        """Tokens generated so far."""
        return self.tokens[self.prompt_length :]

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended, or None."""
        return self.stop.finish_reason

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of the prompt are still to be found; the first sample finds them for all."""
        return (
            self.params.prompt_logprobs is not None
            and self.index == 0
            and len(self.prompt_logprobs) < self.prompt_length - 1
        )

    def wanted_speculation(self) -> int:
        """Return K for the next round: what was asked for, cut to the room in both contexts and the tokens
        wanted.

        The first new token waits for no draft, so that speculation costs nothing in time to first token.
        """
        length = len(self.tokens)
        if self.max_speculation == 0 or length == self.prompt_length:
            return 0
        # A round emits up to K + 1 tokens; the draft does not run the last token it proposes.
        wanted = min(self.max_speculation, self.max_length - length - 1, self.stop.remaining - 1)
        if self.draft_context is not None:
            wanted = min(wanted, self.draft_context - length + 1)
        return max(0, wanted)

    def fork_source(self) -> Sequence | None:
        """Return another sample of the request whose KV memory holds the prompt."""
        if self.prompt_length < 2 or len(self.tokens) > self.prompt_length:
            return None
        for other in self.siblings:
            if other is not self and other.table.blocks and other.computed >= self.prompt_length - 1:
                return other
        return None


@dataclass(slots=True, eq=False)
class Request:
    """What the user asked for: one prompt, and `params.n` samples of its continuation."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    arrival: float  # seconds on the engine's clock
    sequences: list[Sequence]
    error: SonoranError | None = None

    @property
    def finished(self) -> bool:
        """Whether every sample has ended."""
        return all(sequence.finish_reason is not None for sequence in self.sequences)


class TextTokens(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        ...

    def detokenizer(self, skip_special_tokens: bool = True, continuation: bool = False) -> Detokenizer:
        """Return a fresh incremental decoder; `continuation` says that its text follows another."""
        ...

    def special_token_id(self, text: str) -> int | None:
        """Return the special token that is written like that, which texts leave out; None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What every request is checked against. Lengths are in tokens."""

    vocab_size: int
    max_model_len: int
    trained_context: int
    kv_capacity: int
    num_speculative_tokens: int  # of the longest speculation; 0 without a drafter
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

    def remedy(self, needed: int) -> str:
        """Return what to do so that so many positions are there."""
        if needed > self.trained_context:
            return (
                f"the model was trained for {self.trained_context}: shorten the prompt, or use another model"
            )
        room = min(self.trained_context, 1 << (needed + needed // 8).bit_length())
        more = "" if self.kv_capacity >= room else f", and KV memory for them (it holds {self.kv_capacity})"
        return f"load the model with max_model_len {room} (--max-model-len {room}){more}"


class Intake:
    """Makes requests; may be used from any thread."""

    def __init__(
        self, limits: Limits, tokenizer: TextTokens, seed: int | None, verification: Verification
    ) -> None:
        """`verification` "rejection" holds for every request, "coupled" unless a request asks otherwise."""
        self.limits = limits
        self._verification = verification
        self._tokenizer = tokenizer
        self._grammars = Grammars(tokenizer, limits.vocab_size)
        self._random = random.SystemRandom() if seed is None else random.Random(seed)

    def make(
        self, request_id: str, prompt_ids: Seq[int], params: SamplingParams, prompt: str | None
    ) -> Request:
        """Return a checked request that is not queued yet.

        Raises ConfigError for token ids that the model does not have and for a form that makes no sense, CapacityError
        when it can never fit.
        """
        tokens = [int(token) for token in prompt_ids]
        self._check(tokens, params)
        if self._verification == "rejection":
            params = replace(params, verification="rejection")
        # The text of a special token is never seen, so that it could not stop anything there; the token does.
        named = tuple(i for i in map(self._tokenizer.special_token_id, params.stop) if i is not None)
        if named and params.skip_special_tokens:
            params = replace(params, stop_token_ids=(*params.stop_token_ids, *named))
        if params.bad_words:
            params = replace(
                params, bad_words=(), bad_word_ids=(*params.bad_word_ids, *self._bad_words(params))
            )
        grammar = None
        if params.structured_outputs is not None:
            grammar = self._grammars.compile(params.structured_outputs)
            params = replace(params, structured_outputs=None)  # a drafter, far away maybe, has no use for it
        seed = params.seed if params.seed is not None else self._random.getrandbits(63)
        sequences: list[Sequence] = []
        for index in range(params.n):
            sequences.append(
                self._sequence(request_id, tokens, params, derive_seed(seed, index), index, sequences)
            )
        for sequence in sequences:
            sequence.grammar = None if grammar is None else grammar.copy()
        return Request(request_id, prompt, tokens, params, seed, time.perf_counter(), sequences)

    def _bad_words(self, params: SamplingParams) -> list[tuple[int, ...]]:
        """Return bad words as token ids: as a text begins with them, and after a space, like vLLM."""
        found: list[tuple[int, ...]] = []
        for word in params.bad_words:
            bare = self._tokenizer.encode(word.lstrip(), add_special_tokens=False)
            spaced = self._tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
            found += [tuple(bare)] if bare else []
            # A space that is a token of its own is no part of the word.
            if spaced and len(spaced) == len(bare) and spaced[0] != bare[0]:
                found.append(tuple(spaced))
        return found

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
        detokenizer = self._tokenizer.detokenizer(params.skip_special_tokens, continuation=True)
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
        needed = len(tokens) + new
        if needed > limits.max_model_len:
            raise CapacityError(
                f"a prompt of {len(tokens)} tokens and at least {new} new ones take {needed} positions, but "
                f"max_model_len is {limits.max_model_len}; {limits.remedy(needed)}"
            )
