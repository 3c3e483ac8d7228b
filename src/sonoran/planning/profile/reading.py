"""The target writes, the draft reads along: acceptance and ranks at every position, and what sampling costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sonoran.backends.base import Backend
from sonoran.backends.rows import TrunkPart, trunk_rows
from sonoran.config import Verification
from sonoran.engine.kv import BlockTable, KVMemory
from sonoran.errors import ConfigError
from sonoran.planning.profile.acceptance import CANDIDATES, DEEPEST, Acceptance, TextRanks
from sonoran.planning.profile.passes import Clock
from sonoran.planning.profile.profile import SamplingTime, Timing
from sonoran.sampling import rowops
from sonoran.sampling.drafts import draft_sample, rank_candidates
from sonoran.sampling.params import SamplingParams
from sonoran.sampling.proposals import EMPTY, Speculation
from sonoran.sampling.verification import verify
from sonoran.ssd.outcomes import outcome_probabilities, rank_rows, score_rows
from sonoran.types import FloatArray

_PREFILL_ROWS = 64
_TIMED_STEPS = 24
_GUESS_K = 4
_GUESS_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reading yields: one acceptance per rule, and the times of sampling."""

    acceptance: tuple[Acceptance, ...]
    sampling: SamplingTime
    num_tokens: int


def read_along(
    target: Backend,
    draft: Backend,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    eos_ids: Sequence[int],
    max_tokens: int,
    seconds: float = math.inf,
    most_seconds: float = math.inf,
    least_positions: int = 0,
    seed: int = 0,
    see: Callable[[Sequence[int]], object] | None = None,
    clock: Clock = time.perf_counter,
    progress: Callable[[float], None] | None = None,
) -> Reading:
    """Generate from every prompt at once with the target, and have the draft predict each token.

    Both models see the target's text. At temperature 0 the rules agree and one acceptance is returned, else one for each
    rule. Stops after ``max_tokens`` tokens per text or about ``seconds``, but not before ``least_positions`` of all
    texts were predicted, by fewer of which a draft is not judged; only ``most_seconds`` end that, too.
    ``see`` is told of all
    text before the draft runs on it. Raises ConfigError when prompts do not fit.
    """
    columns = min(draft.config.vocab_size, target.config.vocab_size)
    run = _Run(target, draft, columns, temperature, tuple(eos_ids), seed, see, clock)
    begin = clock()
    run.open(prompts, max_tokens)
    for step in range(max_tokens):
        alive = [text for text in run.texts if not text.done]
        taken = clock() - begin
        enough = run.counted >= max(1, least_positions) and taken > seconds
        if not alive or enough or (run.counted and taken > most_seconds):
            break
        run.step(alive)
        if progress is not None:
            progress(max((step + 1) / max_tokens, min(1.0, (clock() - begin) / seconds)))
    return run.result()


@dataclass(slots=True)
class _OpenText:
    """Tokens so far, the KV memory of both models, and ranks and chances by rule (see ``TextRanks``)."""

    tokens: list[int]
    prompt_length: int
    seed: int
    tables: tuple[BlockTable, BlockTable]
    rejected: dict[Verification, list[int]] = field(default_factory=dict)
    free: dict[Verification, list[int]] = field(default_factory=dict)
    chances: dict[Verification, list[tuple[float, ...]]] = field(default_factory=dict)
    free_chances: dict[Verification, list[tuple[float, ...]]] = field(default_factory=dict)
    done: bool = False

    def record(self, rule: Verification, rejected: int, free: int) -> None:
        self.rejected.setdefault(rule, []).append(rejected)
        self.free.setdefault(rule, []).append(free)

    def believe(self, rule: Verification, chances: tuple[float, ...], free: tuple[float, ...]) -> None:
        self.chances.setdefault(rule, []).append(chances)
        self.free_chances.setdefault(rule, []).append(free)

    def ranks(self, rule: Verification) -> TextRanks:
        return TextRanks(
            tuple(self.rejected[rule]),
            tuple(self.free[rule]),
            tuple(self.chances[rule]),
            tuple(self.free_chances[rule]),
        )


class _Run:
    def __init__(
        self,
        target: Backend,
        draft: Backend,
        columns: int,
        temperature: float,
        eos_ids: tuple[int, ...],
        seed: int,
        see: Callable[[Sequence[int]], object] | None,
        clock: Clock,
    ) -> None:
        self.backends = (target, draft)
        self.memories = (KVMemory(target, prefix_caching=False), KVMemory(draft, prefix_caching=False))
        self.columns, self.eos_ids, self.seed, self.clock = columns, eos_ids, seed, clock
        self.see = see
        self.params = SamplingParams(temperature=temperature)
        self.rules: tuple[Verification, ...] = (
            ("coupled",) if temperature == 0.0 else ("coupled", "rejection")
        )
        self.texts: list[_OpenText] = []
        self.surprise = [0.0, 0.0]
        self.counted = 0
        self.times: dict[str, list[float]] = {"row": [], "token": [], "guess": []}

    def open(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
        """Read all prompts but their last token with both models."""
        for index, prompt in enumerate(prompts):
            if len(prompt) < 1:
                raise ConfigError("a calibration prompt is empty")
            text = _OpenText(list(prompt), len(prompt), self.seed + index, (BlockTable(), BlockTable()))
            for memory, table in zip(self.memories, text.tables, strict=True):
                if not memory.reserve(table, 0, len(prompt) + max_tokens):
                    raise ConfigError(
                        f"calibration prompts of {len(prompt)} tokens and {max_tokens} new ones do not fit the KV "
                        "memory; use fewer or shorter prompts"
                    )
            self.texts.append(text)
            if self.see is not None:
                self.see(text.tokens)
            for start in range(0, len(prompt) - 1, _PREFILL_ROWS):
                self._forward([text], start, min(start + _PREFILL_ROWS, len(prompt) - 1), logits=0)

    def step(self, alive: list[_OpenText]) -> None:
        """One token of every text that is not done."""
        if self.see is not None:
            self.see([text.tokens[-1] for text in alive])
        last = [self._forward_last(which, alive) for which in (0, 1)]
        for text, target_row, draft_row in zip(alive, *last, strict=True):
            self._advance(text, target_row, draft_row[: self.columns])

    def result(self) -> Reading:
        """Return everything recorded. Raises ConfigError when nothing was."""
        if not self.counted:
            raise ConfigError("no calibration text was generated")
        perplexities = [math.exp(total / self.counted) for total in self.surprise]
        found = tuple(
            Acceptance(
                rule,
                self.params.temperature,
                tuple(t.ranks(rule) for t in self.texts if t.rejected),
                *perplexities,
            )
            for rule in self.rules
        )
        times = {name: Timing.of(values or [0.0]) for name, values in self.times.items()}
        sampling = SamplingTime(self.params.temperature, times["row"], times["token"], times["guess"])
        return Reading(found, sampling, self.counted)

    def _forward(self, texts: list[_OpenText], start: int, end: int, logits: int) -> None:
        for which, backend in enumerate(self.backends):
            parts = [TrunkPart(t.tokens[start:end], start, logits, t.tables[which].blocks) for t in texts]
            backend.forward(trunk_rows(parts, backend.block_size))

    def _forward_last(self, which: int, texts: list[_OpenText]) -> FloatArray:
        backend = self.backends[which]
        parts = [TrunkPart(t.tokens[-1:], len(t.tokens) - 1, 1, t.tables[which].blocks) for t in texts]
        return backend.forward(trunk_rows(parts, backend.block_size))

    def _advance(self, text: _OpenText, target_row: FloatArray, draft_row: FloatArray) -> None:
        timed = len(self.times["row"]) < _TIMED_STEPS
        begin = self.clock()
        token = self._own_token(text, target_row)
        if timed:
            self.times["row"].append(1e3 * (self.clock() - begin))
            self._time_draft(text, draft_row)
        for rule in self.rules:
            self._record(text, rule, target_row, draft_row, token)
        for which, row in enumerate((target_row, draft_row)):
            # A draft with fewer tokens, or a restricted one, is charged as if it guessed among all.
            known = token < len(row) and np.isfinite(row[token])
            self.surprise[which] += rowops.logsumexp(row) - float(row[token]) if known else math.log(len(row))
        self.counted += 1
        text.tokens.append(token)
        # A padding token that only the target has cannot be read by the draft.
        text.done = token in self.eos_ids or token >= self.columns

    def _own_token(self, text: _OpenText, row: FloatArray) -> int:
        return verify(
            "coupled", row[None], text.tokens, text.prompt_length, EMPTY, self.params, text.seed, self.eos_ids
        ).tokens[0]

    def _record(
        self, text: _OpenText, rule: Verification, target_row: FloatArray, draft_row: FloatArray, token: int
    ) -> None:
        position = len(text.tokens)
        free = self._rank(text, rule, draft_row, position, token, None)
        if rule == "coupled":
            # The draft's own token is its first candidate: it is sent, and the others move up by one.
            text.record(rule, free - 1, free)
            chances = self._chances(text, draft_row, rule, None)
            text.believe(rule, chances, chances)
            return
        sent, proposal = draft_sample(
            rule, draft_row, (), text.prompt_length, self.params, text.seed, position, self.eos_ids
        )
        outcome = verify(
            rule,
            np.stack([target_row, target_row]),
            text.tokens,
            text.prompt_length,
            Speculation((sent,), (proposal,) if proposal is not None else ()),
            self.params,
            text.seed,
            self.eos_ids,
        )
        rejected = 0
        if outcome.accepted == 0:
            rejected = self._rank(text, rule, draft_row, position, outcome.bonus, sent)
        text.record(rule, rejected, free)
        text.believe(
            rule, self._chances(text, draft_row, rule, sent), self._chances(text, draft_row, rule, None)
        )

    def _chances(
        self, text: _OpenText, row: FloatArray, rule: Verification, sent: int | None
    ) -> tuple[float, ...]:
        """Return the draft's chances of the sent token, if there is one, and of its leading candidates."""
        proposed = [] if sent is None else [sent]
        about = (text.tokens, text.prompt_length, self.params, text.seed, self.eos_ids)
        rows = np.repeat(row[None], len(proposed) + 1, axis=0)
        ranked = rank_rows(rule, rows, proposed, [CANDIDATES] * (len(proposed) + 1), *about)
        scores = score_rows(rule, rows, proposed, ranked, *about)
        first = outcome_probabilities(scores, rule)[0]
        kept = first if sent is None else [1.0 - float(first.sum()), *first]
        return tuple(round(float(chance), 4) for chance in kept)

    def _rank(
        self,
        text: _OpenText,
        rule: Verification,
        row: FloatArray,
        position: int,
        token: int,
        sent: int | None,
    ) -> int:
        """Return the rank of a token from 1; ``DEEPEST + 1`` when it is further down."""
        ranked = rank_candidates(
            row, (), self.params, text.seed, position, rule, DEEPEST, sent,
            prompt_length=text.prompt_length, eos_ids=self.eos_ids,
        )  # fmt: skip
        return ranked.index(token) + 1 if token in ranked else DEEPEST + 1

    def _time_draft(self, text: _OpenText, row: FloatArray) -> None:
        position = len(text.tokens)
        begin = self.clock()
        draft_sample("coupled", row, (), text.prompt_length, self.params, text.seed, position, self.eos_ids)
        drawn = self.clock()
        rows = np.repeat(row[None], _GUESS_K + 1, axis=0)
        rank_rows(
            "coupled", rows, [0] * _GUESS_K, [_GUESS_DEPTH] * (_GUESS_K + 1), text.tokens, text.prompt_length,
            self.params, text.seed, self.eos_ids,
        )  # fmt: skip
        self.times["token"].append(1e3 * (drawn - begin))
        self.times["guess"].append(1e3 * (self.clock() - drawn))
