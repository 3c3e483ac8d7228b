"""Drafting in a worker of its own: one question and one reply per round, and no worker is no reason to wait.

What the worker knows of a sequence is remembered here. Whenever that is in doubt (a new session, an answer that it
does not know the sequence) the sequence is sent again in full, and decoded without a draft until then.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sonoran.config import Law
from sonoran.drafting.patience import Patience
from sonoran.engine.drafter import DraftAnswer, DraftRequest, DraftRound
from sonoran.engine.trace import Span, from_plain
from sonoran.errors import SonoranError, WorkerError
from sonoran.sampling.proposals import (
    EMPTY,
    ProposalDistribution,
    SparseDistribution,
    Speculation,
    UniformDistribution,
)
from sonoran.ssd.messages import Answer, Item, Prefill, Speculations, decode_distribution
from sonoran.types import Origin
from sonoran.worker.client import DraftClient

log = logging.getLogger(__name__)

_LONGEST_FAN_OUT = 1024
_TRACE_PATIENCE_S = 5.0  # for a worker that is in the middle of a long pass, on a machine with other work

_LONGEST_PAUSE = 64
"""Rounds between two attempts to send a sequence to a worker that keeps not to know it."""


@dataclass(slots=True)
class Faults:
    """What was asked of the worker and what it failed to give, since the drafter was made."""

    rounds: int = 0  # in which speculations were wanted
    rounds_without_worker: int = 0
    rounds_without_reply: int = 0
    prefills: int = 0  # sequences sent in full, again included
    unknown_sequences: int = 0  # answers that the worker does not know one
    garbage_answers: int = 0
    garbage_times: int = 0  # replies whose times of work cannot be


@dataclass(slots=True)
class _Known:
    """What the worker knows of a sequence: its first ``length`` tokens, under a generation, in a session.

    ``origin`` is that of the speculation under verification, None when there is none that the worker sent.
    """

    generation: int = 0
    epoch: int = -1  # of no session: a prefill has to come first
    length: int = 0
    origin: Origin | None = None
    refused: int = 0  # times in a row that the worker did not know it
    not_before: int = 0  # round of the next prefill


@dataclass(frozen=True, slots=True)
class _Question:
    """One sequence's part of a round that the worker is asked about; ``index`` is that of the request."""

    index: int
    request: DraftRequest
    known: _Known
    item: Item
    before: Origin | None  # of the speculation whose outcome the item tells


class SsdDrafter:
    """The engine's drafter over a client that is connected. Nothing that the worker does can change a text."""

    def __init__(
        self,
        client: DraftClient,
        *,
        target_vocab: int,
        patience: Patience | None = None,
        law: Law | None = None,
    ) -> None:
        """Draft through ``client``; ids from ``target_vocab`` on are never proposed.

        ``patience`` decides when it is not worth asking; the default follows what rounds wait and save. ``law`` is that
        of the target's sampler, None for the rule that each request names.
        """
        self.client = client
        self.faults = Faults()
        self.last_round: DraftRound | None = None  # None when the worker was not asked
        self._target_vocab = target_vocab
        self._law = law
        self._known: dict[int, _Known] = {}
        self._generation = 0
        self._warned: set[str] = set()
        self._patience = patience or Patience()
        self._asked: tuple[float, float] | None = None  # seconds: when the last round began, what it waited

    @property
    def max_context(self) -> int | None:
        """Tokens that the draft can see."""
        welcome = self.client.welcome
        return welcome.context_length if welcome is not None else None

    def admit(self, request: DraftRequest) -> None:
        """Have the worker read a prompt while the target does."""
        self._prefill(request, self._known_of(request))

    def propose(self, requests: Sequence[DraftRequest]) -> list[Speculation]:
        """Return what the worker has for each sequence; nothing for those that it does not know (yet)."""
        now = time.perf_counter()
        self._weigh_last_round(requests, now)
        self.faults.rounds += 1
        self.last_round = None
        speculations = [EMPTY] * len(requests)
        questions = self._questions(requests, is_up=self.client.state == "up" and self._patience.asks(now))
        reply = self._ask([question.item for question in questions]) if questions else None
        if reply is not None:
            for question, answer in zip(questions, reply.answers, strict=True):
                speculations[question.index] = self._read(question, answer)
        if self.last_round is not None:
            self._asked = now, self.last_round.waited_s
        return speculations

    def release(self, sequence_id: int) -> None:
        """Have the worker forget a sequence."""
        if self._known.pop(sequence_id, None) is not None:
            self.client.free([sequence_id])

    def reset(self) -> None:
        """Have the worker forget every sequence."""
        names = list(self._known)
        self._known.clear()
        self.last_round = self._asked = None
        if names:
            self.client.free(names)

    def check_invariants(self) -> None:
        """Raise RuntimeError when sequences are left that were never released."""
        if self._known:
            raise RuntimeError(f"the draft worker still holds sequences {sorted(self._known)}")

    def stats(self, ask_worker: bool = True) -> dict[str, Any]:
        """Return faults, the state of the connection, and the worker's own counters if it is asked and answers."""
        return {
            **asdict(self.faults),
            "given_up": self._patience.given_up,
            "connection": self.client.stats(),
            **({"worker": self.client.worker_stats()} if ask_worker else {}),
        }

    def record(self, limit: int) -> list[Span] | None:
        """Have the worker record the newest ``limit`` spans; return what it has recorded, nothing without an answer."""
        asked = time.perf_counter()
        values = self.client.worker_stats(trace=limit, patience_s=_TRACE_PATIENCE_S)
        if values is None:
            log.warning("the draft worker did not answer about its trace within %g s", _TRACE_PATIENCE_S)
            return []
        shift = clock_shift(asked, time.perf_counter(), values.get("clock_s"))
        return from_plain(values.get("spans"), shift)

    def close(self) -> None:
        """End the connection, and a worker of our own with it."""
        self.client.close()

    def _known_of(self, request: DraftRequest) -> _Known:
        return self._known.setdefault(request.sequence_id, _Known())

    def _weigh_last_round(self, requests: Sequence[DraftRequest], now: float) -> None:
        """Compare what the last round waited with what its speculations saved; they may not be worth asking for."""
        asked, self._asked = self._asked, None
        accepted = [
            request.outcome.accepted
            for request in requests
            if request.outcome is not None and self._known_of(request).origin is not None
        ]
        if asked is None or not accepted:
            return
        begin, waited_s = asked
        tokens = sum(accepted) + len(accepted)
        if self._patience.observe(now, waited_s, now - begin, tokens, len(accepted)):
            level = logging.WARNING if self._patience.given_up == 1 else logging.DEBUG
            log.log(
                level, "waiting for the draft worker costs more than it saves; it is not asked for a while"
            )

    def _questions(self, requests: Sequence[DraftRequest], is_up: bool) -> list[_Question]:
        """Return what to ask about the sequences that the worker knows; the others are sent to it."""
        self.faults.rounds_without_worker += not is_up
        questions = []
        for index, request in enumerate(requests):
            known = self._known_of(request)
            if not is_up:
                known.origin = None
            elif known.epoch != self.client.epoch:
                self._prefill(request, known)
            elif len(request.tokens) > known.length:
                item = _item(request, known)
                before = known.origin if item.accepted >= 0 else None
                known.length, known.origin = len(request.tokens), None
                questions.append(_Question(index, request, known, item, before))
        return questions

    def _prefill(self, request: DraftRequest, known: _Known) -> None:
        """Send the worker all of a sequence, unless it recently would not know of it."""
        known.origin = None
        if self.faults.rounds < known.not_before or len(request.tokens) > (self.max_context or math.inf):
            return
        self._generation += 1
        message = Prefill(
            request.sequence_id,
            self._generation,
            request.tokens,
            request.prompt_length,
            request.seed,
            request.params,
            self._law,
        )
        epoch = self.client.epoch
        try:
            sent = self.client.prefill(message)
        except SonoranError as error:
            sent = False
            self._warn_once("a sequence cannot be sent to the draft worker and is decoded without it", error)
        if sent:
            self.faults.prefills += 1
            known.generation, known.epoch, known.length = self._generation, epoch, len(request.tokens)

    def _ask(self, items: list[Item]) -> Speculations | None:
        """Ask and wait; None when there is no reply, or none with an answer to each item."""
        begin = time.perf_counter()
        reply = self.client.speculate(items)
        self.last_round = DraftRound(time.perf_counter() - begin)
        if reply is None:
            self.faults.rounds_without_reply += 1
            return None
        if len(reply.answers) != len(items):
            self.faults.garbage_answers += 1
            self._log_bad_answer(WorkerError(f"{len(reply.answers)} answers to {len(items)} questions"))
            return None
        if all(math.isfinite(ms) and ms >= 0.0 for ms in (reply.hidden_ms, reply.exposed_ms)):
            self.last_round.hidden_s = 1e-3 * reply.hidden_ms
            self.last_round.exposed_s = 1e-3 * reply.exposed_ms
        else:
            self.faults.garbage_times += 1
            self._log_bad_answer(WorkerError(f"times of {reply.hidden_ms} and {reply.exposed_ms} ms"))
        return reply

    def _read(self, question: _Question, answer: Answer) -> Speculation:
        """Return the speculation in an answer, none if it breaks a rule or the worker does not know the sequence."""
        request, known = question.request, question.known
        try:
            rule = self._law or request.params.verification
            speculation = read_answer(answer, question.item, rule, self._target_vocab)
        except WorkerError as error:
            self.faults.garbage_answers += 1
            self._log_bad_answer(error)
            return EMPTY
        if not answer.known:
            self.faults.unknown_sequences += 1
            known.refused += 1
            known.epoch = -1
            if known.refused > 1:
                known.not_before = self.faults.rounds + min(2**known.refused, _LONGEST_PAUSE)
            self._prefill(request, known)
            return EMPTY
        known.refused = 0
        known.origin = answer.origin
        if self.last_round is not None:
            self.last_round.answers[request.sequence_id] = DraftAnswer(
                answer.origin, question.before, tuple(answer.fan_out)
            )
        return speculation

    def _log_bad_answer(self, error: SonoranError) -> None:
        self._warn_once("the draft worker talks nonsense, which is ignored", error)

    def _warn_once(self, what: str, error: SonoranError) -> None:
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s: %s", what, error)


def clock_shift(asked_s: float, answered_s: float, clock_s: object) -> float:
    """Return what to add to a worker's times: 0 on one machine, where both sides have the same clock.

    `clock_s` is the worker's clock at some moment between asking and answer. When it lies between them, the clocks
    are taken to be the same. Otherwise it is taken to be the middle, which is wrong by at most half the time between.
    """
    if not isinstance(clock_s, float) or asked_s <= clock_s <= answered_s:
        return 0.0
    return 0.5 * (asked_s + answered_s) - clock_s


def _item(request: DraftRequest, known: _Known) -> Item:
    """Return what the worker does not know of a sequence yet."""
    tokens = request.tokens[known.length :]
    outcome = request.outcome
    verified = known.origin is not None and outcome is not None and outcome.accepted == len(tokens) - 1
    accepted = outcome.accepted if verified and outcome is not None else -1
    return Item(request.sequence_id, known.generation, known.length, tokens, request.wanted, accepted)


def read_answer(answer: Answer, item: Item, rule: Law, target_vocab: int) -> Speculation:
    """Return the speculation in an answer to ``item``.

    Ids must lie below ``target_vocab``. Under the rejection rule every token needs a distribution that gives it
    a positive probability. Raises WorkerError for an answer that breaks a rule; there is then no speculation to trust.
    """
    tokens = answer.tokens
    if (answer.sequence, answer.generation) != (item.sequence, item.generation):
        raise WorkerError(f"an answer about sequence {answer.sequence} instead of {item.sequence}")
    if len(tokens) > item.wanted:
        raise WorkerError(f"{len(tokens)} tokens instead of at most {item.wanted}")
    for token in tokens:
        if not 0 <= token < target_vocab:
            raise WorkerError(f"token {token} in a vocabulary of {target_vocab}")
    if len(answer.fan_out) > _LONGEST_FAN_OUT:
        raise WorkerError(f"a fan-out of {len(answer.fan_out)} positions")
    if not tokens:
        return EMPTY
    if rule != "rejection":
        return Speculation(tuple(tokens), origin=answer.origin)
    if len(answer.distributions) != len(tokens):
        raise WorkerError(f"{len(answer.distributions)} distributions for {len(tokens)} tokens")
    distributions = tuple(decode_distribution(q) for q in answer.distributions)
    for token, q in zip(tokens, distributions, strict=True):
        _check_distribution(q, token, target_vocab)
    return Speculation(tuple(tokens), distributions, answer.origin)


def _check_distribution(q: ProposalDistribution, token: int, target_vocab: int) -> None:
    largest = 0
    if isinstance(q, SparseDistribution):
        largest = int(q.ids[-1])
    elif isinstance(q, UniformDistribution):
        largest = q.size - 1
    if largest >= target_vocab:
        raise WorkerError(f"a distribution that reaches token {largest} in a vocabulary of {target_vocab}")
    if not q.probability(token) > 0.0:
        raise WorkerError(f"a distribution under which token {token} cannot be drawn")
