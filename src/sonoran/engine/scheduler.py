"""Which sequences take part in the next round, with how many rows: continuous batching over paged KV."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sonoran.engine.kv import BlockTable, KVMemory
from sonoran.engine.sequence import Sequence


@dataclass(slots=True)
class Work:
    """One sequence's share of a round: `count` committed tokens to run, and the K it may speculate."""

    sequence: Sequence
    count: int
    speculate: int = 0

    @property
    def reaches_end(self) -> bool:
        """Whether the last committed token is run, so that the round yields a new token."""
        return self.sequence.computed + self.count == len(self.sequence.tokens)


class Scheduler:
    """First come, first served, in three steps per round.

    1. Every running sequence that decodes gets its row; when KV memory is short, the sequence admitted last
       is preempted: it gives up its blocks, keeps its tokens, and is first in the queue.
    2. Rows and blocks that are left go to speculation, a share being kept for prompts.
    3. Prompts (or what preempted sequences have to recompute) fill the rest in chunks, and the head of the
       queue is admitted while sequences, rows and blocks suffice. No other request overtakes the head.

    The sequence admitted first is never preempted for another, so it always finishes: nobody waits forever.
    """

    def __init__(self, kv: KVMemory, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def add_first(self, sequences: list[Sequence]) -> None:
        """Queue further samples of a request whose prompt is in memory now, ahead of everyone."""
        self.waiting.extendleft(reversed(sequences))

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, whatever its state, and free its blocks; harmless when it is not there."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.kv.close(sequence.table)

    def schedule(self) -> list[Work]:
        """Plan a round. Blocks for everything planned are reserved; an empty plan means nothing to do."""
        preempted = self._keep_running()
        decoding = [Work(s, 1) for s in self.running if s.remaining == 1]
        rows = self.max_num_batched_tokens - len(decoding)
        filling = [s for s in self.running if s.remaining > 1]
        # A quarter of the rows is kept for prompts, so that speculation cannot hold them up.
        kept = max(1, self.max_num_batched_tokens // 4) if filling or self.waiting else 0
        rows -= self._speculate(decoding, max(0, rows - kept))
        chunks: list[Work] = []
        for sequence in filling:
            if rows > 0:
                chunks.append(Work(sequence, min(sequence.remaining, rows)))
                rows -= chunks[-1].count
        while self.waiting and rows > 0 and not preempted and len(self.running) < self.max_num_seqs:
            if not self._admit(self.waiting[0]):
                break
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            chunks.append(Work(sequence, min(sequence.remaining, rows)))
            rows -= chunks[-1].count
        return decoding + chunks

    def _keep_running(self) -> bool:
        """Make the next position of every running sequence writable; tell whether one was preempted."""
        preempted = False
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            if self.kv.reserve(sequence.table, sequence.computed, len(sequence.tokens)):
                index += 1
                continue
            self._preempt(self.running.pop())
            preempted = True
        return preempted

    def _preempt(self, sequence: Sequence) -> None:
        self.kv.close(sequence.table)
        sequence.computed = 0
        sequence.outcome = None
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(sequence)

    def _speculate(self, decoding: list[Work], rows: int) -> int:
        """Share the rows out, and cut each K to the blocks there are; return the rows given away."""
        given = 0
        for index, work in enumerate(decoding):
            sequence = work.sequence
            share = (rows - given) // (len(decoding) - index)
            wanted = min(sequence.wanted_speculation(), share)
            if wanted <= 0:
                continue
            length = len(sequence.tokens)
            if not self.kv.reserve(sequence.table, sequence.computed, length + wanted):
                wanted = min(wanted, len(sequence.table.blocks) * self.kv.block_size - length)
            work.speculate = wanted
            given += wanted
        return given

    def _admit(self, sequence: Sequence) -> bool:
        """Give a waiting sequence the blocks for all its tokens, or change nothing and return False."""
        length = len(sequence.tokens)
        # Each running sequence may need a block soon; without this margin the newcomer would be preempted at
        # once.
        margin = len(self.running)
        source = sequence.fork_source()
        if source is not None:
            shared = self.kv.fork(source.table, sequence.prompt_length - 1)
            start = sequence.prompt_length - 1
            needed = self.kv.blocks_for(length) - len(shared.blocks) + 1
            if needed + margin > self.kv.pool.available:
                self.kv.close(shared)
                return False
            table = shared
        else:
            # What is in memory already gives no logits any more.
            found = BlockTable() if sequence.wants_prompt_logprobs else self.kv.match(sequence.tokens)
            if self.kv.shortfall(found, length) + margin > 0:
                return False
            table = self.kv.open(found)
            start = len(found.blocks) * self.kv.block_size
        sequence.table = table
        sequence.computed = start
        if not sequence.num_preemptions:
            sequence.num_cached = start
        return self.kv.reserve(table, start, length)
