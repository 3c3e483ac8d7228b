"""The draft's side of SSD for one client: look up, answer, then draft replies to every likely outcome.

A round (SSD paper, Algorithm 1): ``speculate`` applies the outcomes, reads the cache and answers; ``work`` then runs,
while the target verifies, the trunk pass over [bonus, s_1..s_K], guesses outcomes from its K + 1 rows, and drafts all
branches of all sequences together, one pass per token. It may be abandoned after any pass: what was drafted so far is in
the cache, and an early outcome gets a shorter speculation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sonoran.config import MAX_SPECULATIVE_TOKENS
from sonoran.engine.trace import SpanLog, to_plain
from sonoran.errors import ConfigError
from sonoran.sampling.proposals import EMPTY, Speculation
from sonoran.ssd.backup import random_proposal, top_up_goals
from sonoran.ssd.budget import LARGEST_BUDGET, typical_budget
from sonoran.ssd.context import Context
from sonoran.ssd.copies import CopySource
from sonoran.ssd.messages import (
    MAX_SEQUENCES,
    Answer,
    Hello,
    Item,
    Prefill,
    Speculate,
    Speculations,
    encode_distribution,
)
from sonoran.ssd.model import DraftModel
from sonoran.ssd.outcomes import bonus_rank
from sonoran.ssd.sequence import DraftSequence, start_sequence
from sonoran.ssd.tree import draft_round
from sonoran.ssd.trunk import draft_just_in_time, read_prompts
from sonoran.types import Origin, Outcome

TIMES_KV_MEMORY = 8
"""How many times the tokens that KV memory holds a client's sequences may have: many share their beginning."""

MIN_TOKENS = 65536
"""Tokens that they may have however little KV memory there is."""

MAX_NAMED_TOKENS = 65536
"""Tokens that the parameters of a sequence may name; they are looked at for every token drafted."""

MAX_PASS_ROWS = 2048
"""Rows of one pass: a question of another client waits for one."""

MAX_JUST_IN_TIME = 2048
"""Tokens that are drafted before a reply, which every client waits for."""

_SHOWN: tuple[Origin, ...] = ("primary", "draft")


@dataclass(frozen=True, slots=True)
class _Sent:
    """The last reply: to which sequences, rows of the target's pass that follows from it, and whether it has a copy."""

    sequences: set[int]
    rows: int
    waited_ms: float
    copied: bool


class Speculator:
    """State of one client. Not thread-safe; no input or output. Raises ConfigError for impossible settings."""

    def __init__(self, model: DraftModel, hello: Hello) -> None:
        self._settings = hello.settings
        self._context = Context.make(
            model, self._settings, hello.vocab_size, tuple(hello.eos_ids), hello.num_tokens
        )
        self._target_vocab = hello.vocab_size
        self._sequences: dict[int, DraftSequence] = {}
        self._replied: float | None = None
        self._asked = 0.0
        self._hidden_s = 0.0
        self._sent: _Sent | None = None

    def prefill(self, message: Prefill) -> None:
        """Start a sequence; its prompt is read by ``work``. Raises ConfigError when it makes no sense."""
        self.free([message.sequence])
        self._check_room(message)
        s = start_sequence(message, self._settings.num_speculative_tokens)
        if not all(0 <= token < self._target_vocab for token in s.tokens):
            raise ConfigError(
                f"sequence {s.id} has tokens outside the target's vocabulary of {self._target_vocab}"
            )
        kv = self._context.model.kv
        if self._settings.copy_tokens:
            s.copies = CopySource(self._context.copying.rates, s.prompt_length)
        s.table = kv.open(kv.match(s.tokens))
        s.computed = len(s.table.blocks) * kv.block_size
        self._context.model.see(s.tokens)
        self._sequences[s.id] = s

    def _check_room(self, message: Prefill) -> None:
        """Raise ConfigError for a sequence that the draft cannot see whole, or one that is too many."""
        name, length, context = message.sequence, len(message.tokens), self._context.model.context_length
        if length > context:
            raise ConfigError(f"sequence {name} has {length} tokens, the draft can see {context}")
        if len(self._sequences) >= MAX_SEQUENCES:
            raise ConfigError(f"a client may have {MAX_SEQUENCES} sequences; sequence {name} is one too many")
        held = sum(len(s.tokens) for s in self._sequences.values())
        most = max(TIMES_KV_MEMORY * self._context.model.kv.capacity, MIN_TOKENS)
        if held + length > most:
            raise ConfigError(
                f"a client may have sequences of {most} tokens; it has {held}, and wants {length} more"
            )
        named = len(message.params.logit_bias) + len(message.params.stop_token_ids)
        if named > MAX_NAMED_TOKENS:
            raise ConfigError(
                f"sequence {name} names {named} tokens in its parameters; {MAX_NAMED_TOKENS} are taken"
            )

    def speculate(self, message: Speculate) -> Speculations:
        """Apply the outcomes of a round and answer each sequence: from the cache, else by its backup."""
        begin = time.perf_counter()
        # Without an outcome among the items nothing was verified: what lies between is idle time, not a round.
        if self._replied is not None and any(item.accepted >= 0 for item in message.items):
            self._observe_round(message, begin, self._replied)
        self._asked = begin
        self._context.counters.rounds += 1
        found = [self._look_up(item, len(message.items)) for item in message.items]
        present = [s for s in found if s is not None]
        short = [s for s in present if not s.complete and self._is_caught_up(s)]
        exposed = self._fill_in(short, len(present)) if short else 0.0
        answers = [_answer(item, s) for item, s in zip(message.items, found, strict=True)]
        hidden, self._hidden_s = 1e3 * self._hidden_s, 0.0
        self._replied = time.perf_counter()
        self._sent = _Sent(
            {item.sequence for item in message.items},
            sum(len(answer.tokens) + 1 for answer in answers),
            1e3 * (self._replied - begin),
            any(answer.origin == "copy" for answer in answers),
        )
        if self._context.spans is not None:
            origins = [answer.origin for answer in answers]
            self._context.spans.add("reply", begin, self._replied, origins=origins)
        return Speculations(message.round, answers, hidden, exposed)

    def _observe_round(self, message: Speculate, asked: float, replied: float) -> None:
        """Count the round that a question ends: its tokens, its time, and that of the target."""
        committed = sum(len(item.tokens) for item in message.items)
        context, round_ms, verified_ms = self._context, 1e3 * (asked - self._asked), 1e3 * (asked - replied)
        context.pace.observe(committed, round_ms)
        context.backup.observe_latency(verification_ms=verified_ms)
        sent, items = self._sent, message.items
        if (
            sent is None
            or sent.sequences != {i.sequence for i in items}
            or any(i.accepted < 0 for i in items)
        ):
            return
        context.copying.observe_round(committed, round_ms)
        context.copying.latency.observe(sent.rows, verified_ms)
        if not sent.copied:
            share = 1.0 / len(items)
            context.copying.rival.observe(share * committed, share * sent.rows - 1.0, sent.waited_ms)

    def work(self) -> Iterator[None]:
        """Draft for the next round; yields after every forward pass."""
        passes = self._passes()
        while True:
            begin = time.perf_counter()
            try:
                next(passes)
            except StopIteration:
                return
            finally:
                self._hidden_s += time.perf_counter() - begin
            yield

    def free(self, sequences: Sequence[int]) -> None:
        """Forget sequences; unknown ones are ignored."""
        for name in sequences:
            s = self._sequences.pop(name, None)
            if s is not None:
                self._context.release_scratch(s)
                self._context.model.kv.close(s.table)

    def stats(self) -> dict[str, Any]:
        """Return counters, estimates and the fan-out in force."""
        context, k = self._context, self._settings.num_speculative_tokens
        budget = typical_budget(context)
        return {
            **asdict(context.counters),
            "num_sequences": len(self._sequences),
            "outcomes": context.statistics.summary(k),
            "budget": budget,
            "guesses_per_sequence": context.guesses,
            "trust_in_confidence": context.confidence.weight,
            "fan_out": {origin: context.fan_out.list_for(origin, k, budget) for origin in _SHOWN},
            "verification_ms": context.backup.verification_ms,
            "draft_ms": context.backup.draft_ms,
            "pass_ms_by_rows": context.latency.as_dict(),
            "copies": {
                "num_copies": context.copying.copies,
                "right_by_match": context.copying.rates.as_dict(),
                "round_ms_by_rows": context.copying.latency.as_dict(),
            },
        }

    def trace(self, limit: int) -> dict[str, Any]:
        """Keep the newest ``limit`` spans from now on; return those kept so far, and the time on their clock."""
        kept = self._context.spans.spans() if self._context.spans is not None else []
        self._context.spans = SpanLog(limit) if limit > 0 else None
        return {"spans": to_plain(kept), "clock_s": time.perf_counter()}

    def close(self) -> None:
        """Free everything that this client holds."""
        self.free(list(self._sequences))

    def _passes(self) -> Iterator[None]:
        # One pass over a new prompt goes first, so that a busy batch cannot keep a newcomer waiting for ever.
        for _ in read_prompts(self._context, self._unread()):
            yield
            break
        yield from self._draft_rounds()
        yield from read_prompts(self._context, self._unread())
        yield from self._draft_rounds()

    def _draft_rounds(self) -> Iterator[None]:
        """Draft for all sequences together, in parts where a pass would keep other clients waiting for too long."""
        settings, part, rows = self._settings, list[DraftSequence](), 0
        lists = (settings.fan_out_primary or (), settings.fan_out_backup or ())
        branches = settings.budget if isinstance(settings.budget, int) else LARGEST_BUDGET
        branches = max(branches, *map(sum, lists))
        parts = [part]
        for s in self._stale():
            most = max(len(s.sent) + 1, branches)
            if part and rows + most > MAX_PASS_ROWS:
                part, rows = [], 0
                parts.append(part)
            part.append(s)
            rows += most
        for part in parts:
            yield from draft_round(self._context, part)

    def _unread(self) -> list[DraftSequence]:
        return [s for s in self._sequences.values() if s.unread]

    def _stale(self) -> list[DraftSequence]:
        return [s for s in self._sequences.values() if s.stale and not s.unread]

    def _is_caught_up(self, s: DraftSequence) -> bool:
        """Whether drafting just in time would not have to read a prompt first."""
        return s.unread <= 2 * self._settings.num_speculative_tokens

    def _look_up(self, item: Item, batch: int) -> DraftSequence | None:
        """Move a sequence on by an outcome and look it up; None when it is unknown. A copy may replace what is found."""
        s = self._take(item)
        if s is not None and s.copies is not None and item.wanted:
            expected = self._context.statistics.mean_tokens("primary", len(s.sent)) if s.complete else None
            s.copies.follow(s.tokens)
            start, length = self._context.copying.choose(s.copies, item.wanted, batch, expected)
            copy = self._known(s.copies.index.copy(start, length)) if length else EMPTY
            if copy.tokens:
                s.propose(copy, "copy")
                s.complete = True
        return s

    def _take(self, item: Item) -> DraftSequence | None:
        """Move a sequence on by an outcome and take what the cache has for it; None when it is unknown."""
        s = self._sequences.get(item.sequence)
        if s is None:
            return None
        context = self._context
        if len(s.tokens) + len(item.tokens) > context.model.context_length + MAX_SPECULATIVE_TOKENS:
            self.free([item.sequence])
            return None
        sent, origin, ranked, prediction = s.sent, s.origin, s.ranked, s.prediction
        context.release_scratch(s)
        try:
            outcome = s.commit(item)
        except ConfigError:
            self.free([item.sequence])
            return None
        context.model.see(item.tokens)
        s.wanted = min(item.wanted, self._settings.num_speculative_tokens)
        s.complete = s.wanted < 1
        s.propose(EMPTY, "none")
        if outcome is None:
            s.cache.open(())  # nothing was verified, so nothing that was guessed came true
            return s
        cached = s.cache.take(outcome)
        if cached is None:
            cached = _left_over(sent, outcome)
        if ranked is not None:
            rank = bonus_rank(ranked, sent.tokens, outcome)
            context.statistics.observe(origin, len(sent), outcome, rank, hit=cached is not None)
            if prediction is not None:
                context.confidence.observe(prediction, outcome, rank)
        if cached is None:
            context.counters.misses += 1
            return s
        context.counters.hits += 1
        s.complete = outcome in s.ended or len(cached) >= s.wanted
        context.counters.early_answers += not s.complete
        if cached.tokens:
            s.propose(cached.cut(s.wanted), "primary")
        return s

    def _fill_in(self, short: list[DraftSequence], batch_size: int) -> float:
        """Give sequences that missed a speculation by their backup, and draft on what was cut short if that pays.

        Returns the ms that this took.
        """
        begin = time.perf_counter()
        context = self._context
        cut = [s for s in short if s.origin == "primary"]
        drafting = self._backups([s for s in short if s.origin == "none"], batch_size)
        # When the batch waits for the backup anyway, what was cut short is finished along with it.
        if not self._settings.top_up:
            lengths = [len(s.sent) for s in cut]
        else:
            lengths = [s.wanted for s in cut] if drafting else self._worth_waiting_for(cut)
        context.counters.topped_up += sum(n > len(s.sent) for s, n in zip(cut, lengths, strict=True))
        goals = [(s, s.wanted) for s in drafting] + list(zip(cut, lengths, strict=True))
        draft_just_in_time(context, _affordable(goals))
        spent = 1e3 * (time.perf_counter() - begin)
        if drafting:
            context.backup.observe_latency(draft_ms=spent)
        return spent

    def _worth_waiting_for(self, cut: list[DraftSequence]) -> list[int]:
        """Return the length that each unfinished speculation should have before it is sent."""
        context = self._context
        return top_up_goals(
            [len(s.sent) for s in cut],
            [s.wanted for s in cut],
            context.statistics.acceptance("primary"),
            context.pace.rate,
            context.exposed_latency,
        )

    def _backups(self, missing: list[DraftSequence], batch_size: int) -> list[DraftSequence]:
        """Choose a backup for each sequence that missed; return those for which the draft is to work."""
        uses_ngrams = self._settings.backup in ("ngram", "auto")
        ngrams = [self._known(s.ngrams().propose(s.wanted)) if uses_ngrams else EMPTY for s in missing]
        origins = self._context.backup.choose(batch_size, [len(proposal) > 0 for proposal in ngrams])
        drafting = []
        for s, origin, proposal in zip(missing, origins, ngrams, strict=True):
            if origin == "draft":
                drafting.append(s)
            elif origin == "ngram":
                s.propose(proposal, origin)
            elif origin == "random":
                guess = random_proposal(s.seed, len(s.tokens), s.wanted, self._context.width)
                s.propose(guess, origin)
        return drafting

    def _known(self, proposal: Speculation) -> Speculation:
        """Cut a proposal where it has a token that the draft could not score."""
        unknown = (i for i, token in enumerate(proposal.tokens) if token >= self._context.width)
        return proposal.cut(next(unknown, len(proposal.tokens)))


def _affordable(goals: list[tuple[DraftSequence, int]]) -> list[tuple[DraftSequence, int]]:
    """Return the first goals that take ``MAX_JUST_IN_TIME`` tokens together: other clients wait meanwhile."""
    kept, tokens = [], 0
    for s, goal in goals:
        tokens += max(0, goal - len(s.sent))
        if tokens > MAX_JUST_IN_TIME:
            break
        kept.append((s, goal))
    return kept


def _left_over(sent: Speculation, outcome: Outcome) -> Speculation | None:
    """Return what follows a bonus token that was proposed itself: the target verified only what comes before it.

    An engine that changes K between question and verification does so; otherwise that token would have been accepted.
    """
    begin = outcome.accepted + 1
    if begin > len(sent) or sent.tokens[begin - 1] != outcome.bonus:
        return None
    return Speculation(sent.tokens[begin:], sent.distributions[begin:])


def _answer(item: Item, s: DraftSequence | None) -> Answer:
    if s is None:
        return Answer(item.sequence, item.generation, False, "none", [], [], [])
    distributions = [encode_distribution(q) for q in s.sent.distributions] if s.rule == "rejection" else []
    return Answer(s.id, s.generation, True, s.origin, list(s.sent.tokens), distributions, s.fan_out)
