"""Drafting in a worker of its own: one question and one reply per round, and no worker is no reason to wait.

What the worker has been told of a sequence is remembered here. Whenever that is in doubt (a new session, an answer
that it does not know the sequence) the sequence is told anew, and decoded without a draft until then.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sonoran.drafting.patience import Patience
from sonoran.drafting.ssd_stats import SsdStats
from sonoran.engine.drafter import DraftAnswer, DraftRequest, DraftRound
from sonoran.errors import SonoranError, WorkerError
from sonoran.sampling.params import VerificationRule
from sonoran.sampling.proposals import EMPTY, Law, SparseLaw, Speculation, UniformLaw
from sonoran.ssd.messages import Answer, Item, Prefill, Speculations, decode_law
from sonoran.types import Origin
from sonoran.worker.client import WorkerClient

_LONGEST_FAN_OUT = 1024


def read_answer(answer: Answer, item: Item, rule: VerificationRule, target_vocab: int) -> Speculation:
    """Return the speculation in an answer to ``item``.

    Ids must lie below ``target_vocab``. Under the rejection rule every token needs a law that gives it a positive
    probability. Raises WorkerError for an answer that breaks a rule; there is then no speculation to trust.
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
    if rule == "coupled":
        return Speculation(tuple(tokens))
    if len(answer.laws) != len(tokens):
        raise WorkerError(f"{len(answer.laws)} laws for {len(tokens)} tokens")
    laws = tuple(decode_law(law) for law in answer.laws)
    for token, law in zip(tokens, laws, strict=True):
        _check_law(law, token, target_vocab)
    return Speculation(tuple(tokens), laws)


def _check_law(law: Law, token: int, target_vocab: int) -> None:
    largest = 0
    if isinstance(law, SparseLaw):
        largest = int(law.ids[-1])
    elif isinstance(law, UniformLaw):
        largest = law.size - 1
    if largest >= target_vocab:
        raise WorkerError(f"a law that reaches token {largest} in a vocabulary of {target_vocab}")
    if not law.probability(token) > 0.0:
        raise WorkerError(f"a law under which token {token} cannot be drawn")


log = logging.getLogger(__name__)

_LONGEST_PAUSE = 64
"""Rounds between two attempts to tell the worker of a sequence that it keeps not to know."""


@dataclass(slots=True)
class _Told:
    """What the worker knows of a sequence: its first ``length`` tokens, under a generation, in a session.

    ``origin`` is that of the speculation under verification, None when there is none that the worker sent.
    """

    generation: int = 0
    epoch: int = -1  # of no session: it has to be told
    length: int = 0
    origin: Origin | None = None
    refused: int = 0  # times in a row that the worker did not know it
    not_before: int = 0  # round


@dataclass(slots=True)
class _Round:
    """A round whose end is not known yet."""

    begin: float
    waited: float
    hit: bool


class SsdDrafter:
    """The engine's drafter over a client that is connected. Nothing that the worker does can change a text."""

    def __init__(self, client: WorkerClient, *, target_vocab: int, patience: Patience | None = None) -> None:
        """Draft through ``client``; ids from ``target_vocab`` on are never proposed."""
        self.client = client
        self._target_vocab = target_vocab
        self._told: dict[int, _Told] = {}
        self._generation = 0
        self._round: _Round | None = None
        self.last_round: DraftRound | None = None  # None when the worker was not asked
        self._complained = False
        self._patience = patience or Patience()
        self._stats = SsdStats()

    @property
    def max_context(self) -> int | None:
        """Tokens that the draft can see."""
        welcome = self.client.welcome
        return welcome.context_length if welcome is not None else None

    def admit(self, request: DraftRequest) -> None:
        """Have the worker read a prompt while the target does."""
        self._tell(request)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Speculation]:
        """Return what the worker has for each sequence; nothing for those that it does not know (yet)."""
        begin = time.perf_counter()
        self._end_round(requests, begin)
        self.last_round = None
        speculations = [EMPTY] * len(requests)
        self._stats.rounds += 1
        if self.client.state != "up" or not self._patience.asks(begin):
            self._stats.rounds_without_worker += 1
            for request in requests:
                self._entry(request).origin = None
            return speculations
        items: list[Item] = []
        asking: list[tuple[int, _Told, Origin | None]] = []
        for index, request in enumerate(requests):
            told = self._entry(request)
            if told.epoch != self.client.epoch:
                self._tell(request)
                continue
            item = _item(request, told)
            if item.tokens:
                items.append(item)
                asking.append((index, told, told.origin if item.accepted >= 0 else None))
                told.length, told.origin = len(request.tokens), None
        if not items:
            return speculations
        reply = self._ask(items, begin)
        if reply is None:
            return speculations
        for (index, told, before), item, answer in zip(asking, items, reply.answers, strict=True):
            speculations[index] = self._take(answer, item, requests[index], told, before)
        return speculations

    def release(self, sequence_id: int) -> None:
        """Have the worker forget a sequence."""
        if self._told.pop(sequence_id, None) is not None:
            self.client.free([sequence_id])

    def reset(self) -> None:
        """Have the worker forget every sequence."""
        names = list(self._told)
        self._told.clear()
        self._round = self.last_round = None
        if names:
            self.client.free(names)

    def check_invariants(self) -> None:
        """Raise RuntimeError when sequences are left that were never released."""
        if self._told:
            raise RuntimeError(f"the draft worker still holds sequences {sorted(self._told)}")

    def stats(self) -> dict[str, Any]:
        """Return hits, waits and faults as the target saw them, and the worker's own counters if it answers."""
        return {
            **self._stats.as_dict(),
            "connection": self.client.stats(),
            "given_up": self._patience.given_up,
            "worker": self.client.worker_stats(),
        }

    def close(self) -> None:
        """End the connection, and a worker of our own with it."""
        self.client.close()

    def _entry(self, request: DraftRequest) -> _Told:
        return self._told.setdefault(request.sequence_id, _Told())

    def _tell(self, request: DraftRequest) -> None:
        """Tell the worker all of a sequence, unless it recently would not hear of it."""
        told = self._entry(request)
        told.origin = None
        if self._stats.rounds < told.not_before or len(request.tokens) > (self.max_context or math.inf):
            return
        self._generation += 1
        message = Prefill(
            request.sequence_id,
            self._generation,
            request.tokens,
            request.prompt_length,
            request.seed,
            request.params,
        )
        epoch = self.client.epoch
        try:
            sent = self.client.prefill(message)
        except SonoranError as error:
            sent = False
            self._complain(error)
        if sent:
            self._stats.prefills += 1
            told.generation, told.epoch, told.length = self._generation, epoch, len(request.tokens)

    def _ask(self, items: list[Item], begin: float) -> Speculations | None:
        asked = time.perf_counter()
        reply = self.client.speculate(items)
        waited = time.perf_counter() - asked
        self.last_round = DraftRound(waited)
        if reply is None:
            self._stats.rounds_without_reply += 1
            self._stats.miss_waits.add(waited)
            return None
        if len(reply.answers) != len(items):
            self._complain(WorkerError(f"{len(reply.answers)} answers to {len(items)} questions"))
            return None
        if self._stats.worked(reply.hidden_ms, reply.exposed_ms):
            self.last_round = DraftRound(waited, 1e-3 * reply.hidden_ms, 1e-3 * reply.exposed_ms)
        else:
            self._complain(WorkerError(f"times of {reply.hidden_ms} and {reply.exposed_ms} ms"))
        hit = all(answer.origin == "primary" for answer in reply.answers)
        (self._stats.hit_waits if hit else self._stats.miss_waits).add(waited)
        self._round = _Round(begin, waited, hit)
        return reply

    def _take(
        self, answer: Answer, item: Item, request: DraftRequest, told: _Told, before: Origin | None
    ) -> Speculation:
        try:
            speculation = read_answer(answer, item, request.params.verification, self._target_vocab)
        except WorkerError as error:
            self._complain(error)
            return EMPTY
        if not answer.known:
            self._stats.unknown += 1
            told.refused += 1
            told.epoch = -1
            if told.refused > 1:
                told.not_before = self._stats.rounds + min(2**told.refused, _LONGEST_PAUSE)
            self._tell(request)
            return EMPTY
        told.refused = 0
        told.origin = answer.origin
        self._stats.answered(answer.origin, before, answer.fan_out)
        if self.last_round is not None:
            self.last_round.answers[item.sequence] = DraftAnswer(answer.origin, before, tuple(answer.fan_out))
        return speculation

    def _end_round(self, requests: Sequence[DraftRequest], now: float) -> None:
        """Pair outcomes with the speculations that they are about."""
        sequences = tokens = 0
        for request in requests:
            told = self._told.get(request.sequence_id)
            if told is not None and told.origin is not None and request.outcome is not None:
                self._stats.verified(told.origin, request.outcome.accepted + 1)
                sequences, tokens = sequences + 1, tokens + request.outcome.accepted + 1
        current, self._round = self._round, None
        if sequences and current is not None:
            waits = self._stats.hit_waits if current.hit else self._stats.miss_waits
            waits.end(current.waited, now - current.begin)
            if self._patience.observe(now, current.waited, now - current.begin, tokens, sequences):
                level = logging.WARNING if self._patience.given_up == 1 else logging.DEBUG
                log.log(
                    level,
                    "waiting for the draft worker costs more than it saves; it is not asked for a while",
                )

    def _complain(self, error: SonoranError) -> None:
        """Count nonsense; say so once."""
        self._stats.garbage += 1
        if not self._complained:
            self._complained = True
            log.warning("the draft worker talks nonsense, which is ignored: %s", error)


def _item(request: DraftRequest, told: _Told) -> Item:
    """Return what the worker has not heard of a sequence yet."""
    tokens = request.tokens[told.length :]
    outcome = request.outcome
    verified = told.origin is not None and outcome is not None and outcome.accepted == len(tokens) - 1
    accepted = outcome.accepted if verified and outcome is not None else -1
    return Item(request.sequence_id, told.generation, told.length, tokens, request.wanted, accepted)
