"""Which sequence is in which row of a batch: vLLM does not say, so that a sequence is known by its history. Pure.

A step tells of every row which tokens it emitted and what all its tokens are. What a row had before the step is what its
sequence had after the last step in which it was seen, wherever its row was then. Rows move when requests end, vanish and
come back when a request is preempted, and stand still while a prompt is read in parts. Sequences with the same history
are interchangeable: whatever is proposed for one of them is as good for the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from sonoran.types import IntArray, Outcome

_TAIL = 8
"""Last tokens that are looked up; only sequences that agree in them are compared whole."""

_Key = tuple[int, tuple[int, ...]]
_History = tuple[int, Sequence[int], IntArray]  # a row, what it emitted, all its tokens before


@dataclass(slots=True, eq=False)
class Tracked:
    """A sequence. ``tokens`` are committed; ``proposed`` is what the target verifies in its next step, None while it does
    not verify anything of ours."""

    id: int
    prompt_length: int
    tokens: list[int] = field(default_factory=list)
    proposed: tuple[int, ...] | None = None
    step: int = 0  # when it was last seen
    copy: IntArray = field(default_factory=lambda: np.empty(0, np.int32))  # of the tokens, with room to grow

    def append(self, tokens: Sequence[int]) -> None:
        """Commit tokens."""
        begin, end = len(self.tokens), len(self.tokens) + len(tokens)
        if end > len(self.copy):
            grown = np.empty(max(64, 2 * end), np.int32)
            grown[:begin] = self.copy[:begin]
            self.copy = grown
        self.copy[begin:end] = tokens
        self.tokens.extend(map(int, tokens))

    def is_history(self, tokens: IntArray) -> bool:
        """Whether these are its tokens."""
        return len(tokens) == len(self.tokens) and bool(np.array_equal(self.copy[: len(tokens)], tokens))

    def verified(self, emitted: Sequence[int]) -> bool:
        """Whether the target can have emitted this in verifying what was proposed: accepted tokens, then one."""
        accepted = tuple(emitted[:-1])
        return self.proposed is not None and self.proposed[: len(accepted)] == accepted


@dataclass(frozen=True, slots=True)
class Decoded:
    """A row that emitted tokens. ``outcome`` is None when nothing that was ``proposed`` can have been verified."""

    row: int
    sequence: Tracked
    outcome: Outcome | None
    proposed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What a step was: rows that emitted tokens, prompts that were not known before, and ids of what is gone."""

    decoded: list[Decoded]
    prompts: list[Tracked]
    gone: list[int]


class Rows:
    """All sequences that were seen lately; ``keep`` is for how many steps, ``most`` how many of them."""

    def __init__(self, keep: int, most: int) -> None:
        self._keep, self._most = keep, most
        self._step = 0
        self._next = 0
        self._sequences: dict[int, Tracked] = {}
        self._by_row: dict[int, Tracked] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def observe(
        self, emitted: Sequence[Sequence[int]], lengths: Sequence[int] | IntArray, tokens: IntArray
    ) -> Step:
        """Take in a step: the tokens that each row emitted (none: its prompt is being read), the tokens that each has
        now, and these, int32[rows or more, longest]. What contradicts itself is left out.

        After it, ``proposed`` of every sequence in ``decoded`` is None, and to be set to what is proposed.
        """
        self._step += 1
        histories: list[_History] = []
        for row, new in enumerate(emitted):
            length = int(lengths[row]) if row < len(lengths) and row < len(tokens) else 0
            if len(new) < length <= tokens.shape[1]:
                histories.append((row, new, tokens[row, : length - len(new)]))
        found = self._assign(histories)
        decoded, prompts, by_row = list[Decoded](), list[Tracked](), dict[int, Tracked]()
        for row, new, history in histories:
            sequence = found.get(row)
            known = sequence is not None
            if sequence is None:
                sequence = self._begin(history)
            sequence.step = self._step
            by_row[row] = sequence
            if not len(new):
                sequence.proposed = None  # it was preempted, if there was anything to verify
                prompts += [] if known else [sequence]
                continue
            outcome = Outcome(len(new) - 1, int(new[-1])) if known and sequence.verified(new) else None
            decoded.append(Decoded(row, sequence, outcome, sequence.proposed or ()))
            sequence.append(new)
            sequence.proposed = None
        self._by_row = by_row
        return Step(decoded, prompts, self._forget())

    def clear(self) -> list[int]:
        """Forget everything; return the ids."""
        gone = list(self._sequences)
        self._sequences.clear()
        self._by_row.clear()
        return gone

    def _assign(self, histories: Sequence[_History]) -> dict[int, Tracked]:
        """Return the sequence of each row that is known, none twice.

        The one that was in the row before is tried first; then those that can have emitted what the row did, since twins
        part where one accepts what was proposed to it; then any.
        """
        found: dict[int, Tracked] = {}
        for row, new, history in histories:
            before = self._by_row.get(row)
            if before and (len(new) < 2 or before.verified(new)) and before.is_history(history):
                found[row] = before
        moved = [history for history in histories if history[0] not in found]
        if not moved:
            return found
        free: dict[_Key, list[Tracked]] = {}
        taken = {sequence.id for sequence in found.values()}
        for sequence in self._sequences.values():
            if sequence.id not in taken:
                free.setdefault(_key(sequence.tokens), []).append(sequence)
        for fitting in (True, False):
            for row, new, history in moved:
                peers = free.get(_key(history), []) if row not in found else []
                for sequence in peers:
                    fits = len(new) < 2 or sequence.verified(new) or not fitting
                    if fits and sequence.is_history(history):
                        found[row] = sequence
                        peers.remove(sequence)
                        break
        return found

    def _begin(self, history: IntArray) -> Tracked:
        sequence = Tracked(self._next, len(history))
        self._next += 1
        self._sequences[sequence.id] = sequence
        sequence.append(history.tolist())
        return sequence

    def _forget(self) -> list[int]:
        """Drop what was not seen for long, and of what was not seen now the oldest beyond what there may be."""
        absent = sorted((s for s in self._sequences.values() if s.step < self._step), key=lambda s: s.step)
        excess = max(0, len(self._sequences) - self._most)
        gone = [s for i, s in enumerate(absent) if i < excess or s.step <= self._step - self._keep]
        for sequence in gone:
            del self._sequences[sequence.id]
        return [sequence.id for sequence in gone]

    def __iter__(self) -> Iterator[Tracked]:
        return iter(self._sequences.values())


def _key(history: Sequence[int] | IntArray) -> _Key:
    return len(history), tuple(map(int, history[-_TAIL:]))
