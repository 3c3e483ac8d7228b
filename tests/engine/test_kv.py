"""KV memory: nothing leaks, nothing is freed twice, shared blocks are copied before they are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from sonoran.engine.kv import ROOT, BlockPool, BlockTable, KVMemory, block_key

SIZE = 3


class Memory:
    """Stands in for a backend: what each slot holds is the whole prefix that was written there."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks, self.block_size = num_blocks, SIZE
        self.slots: dict[int, tuple[int, ...]] = {}
        self.copies = 0

    def copy_block(self, source: int, destination: int) -> None:
        self.copies += 1
        for offset in range(SIZE):
            self.slots[destination * SIZE + offset] = self.slots.get(source * SIZE + offset, ())


def make(num_blocks: int = 8, **kwargs: Any) -> tuple[KVMemory, Memory]:
    memory = Memory(num_blocks)
    return KVMemory(memory, **kwargs), memory  # type: ignore[arg-type]


@dataclass
class Live:
    tokens: list[int]
    computed: int
    table: BlockTable
    reserved: int = field(default=0)


class KVMachine(RuleBasedStateMachine):
    """Sequences open, grow, fork, forget rejected tokens and close, in any order."""

    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.kv, self.memory = make(9)
        self.all: list[Live] = []

    def write(self, sequence: Live, end: int) -> bool:
        if not self.kv.reserve(sequence.table, sequence.computed, end):
            return False
        for position in range(sequence.computed, end):
            slot = sequence.table.blocks[position // SIZE] * SIZE + position % SIZE
            self.memory.slots[slot] = tuple(sequence.tokens[: position + 1])
        return True

    @rule(target=live, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14))
    def open(self, tokens: list[int]) -> Live:
        shared = self.kv.match(tokens)
        fits = self.kv.shortfall(shared, len(tokens)) <= 0
        sequence = Live(tokens, len(shared.blocks) * SIZE, self.kv.open(shared))
        assert sequence.computed < len(tokens)
        assert self.write(sequence, len(tokens)) == fits
        if fits:
            sequence.computed = len(tokens)
            self.kv.commit(sequence.table, tokens, sequence.computed)
        else:
            sequence.tokens = tokens[: sequence.computed]
        self.all.append(sequence)
        return sequence

    @rule(sequence=live, drafted=st.lists(st.integers(0, 1), max_size=5), accepted=st.integers(0, 5))
    def verify(self, sequence: Live, drafted: list[int], accepted: int) -> None:
        committed = sequence.tokens
        sequence.tokens = committed + drafted
        if self.write(sequence, len(sequence.tokens)):
            sequence.computed = len(committed) + min(accepted, len(drafted))
        sequence.tokens = sequence.tokens[: sequence.computed]
        self.kv.commit(sequence.table, sequence.tokens, sequence.computed)
        self.kv.truncate(sequence.table, sequence.computed)

    @rule(target=live, sequence=live, keep=st.integers(0, 14))
    def fork(self, sequence: Live, keep: int) -> Live:
        keep = min(keep, sequence.computed)
        child = Live(sequence.tokens[:keep], keep, self.kv.fork(sequence.table, keep))
        self.all.append(child)
        return child

    @rule(sequence=consumes(live))
    def close(self, sequence: Live) -> None:
        self.kv.close(sequence.table)
        self.all = [other for other in self.all if other is not sequence]

    @invariant()
    def counts_add_up(self) -> None:
        self.kv.check([sequence.table for sequence in self.all])

    @invariant()
    def contents_are_right(self) -> None:
        for sequence in self.all:
            for position in range(sequence.computed):
                slot = sequence.table.blocks[position // SIZE] * SIZE + position % SIZE
                assert self.memory.slots[slot] == tuple(sequence.tokens[: position + 1])

    def teardown(self) -> None:
        for sequence in self.all:
            self.kv.close(sequence.table)
        self.kv.check([])
        assert self.kv.pool.available == self.kv.pool.num_blocks


KVMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestKV = KVMachine.TestCase


def fill(kv: KVMemory, tokens: list[int]) -> BlockTable:
    table = kv.open(kv.match(tokens))
    assert kv.reserve(table, len(table.blocks) * SIZE, len(tokens))
    kv.commit(table, tokens, len(tokens))
    return table


def test_a_closed_prompt_is_found_again_but_never_its_last_token() -> None:
    kv, _ = make()
    kv.close(fill(kv, [1, 2, 3, 4, 5, 6]))
    assert len(kv.match([1, 2, 3, 4, 5, 6]).blocks) == 1
    assert len(kv.match([1, 2, 3, 4, 5, 6, 7]).blocks) == 2
    assert kv.match([9, 2, 3, 4, 5, 6, 7]).blocks == []


def test_equal_tokens_under_another_parent_are_another_block() -> None:
    kv, _ = make()
    first = fill(kv, [1, 1, 1, 5, 5, 5])
    second = fill(kv, [2, 2, 2, 5, 5, 5])
    assert not set(first.blocks) & set(second.blocks)
    assert block_key(block_key(ROOT, [1, 1, 1]), [5, 5, 5]) != block_key(
        block_key(ROOT, [2, 2, 2]), [5, 5, 5]
    )


def test_the_block_unused_for_longest_is_evicted_first() -> None:
    kv, _ = make(4)
    kv.close(fill(kv, [1, 1, 1]))
    kv.close(fill(kv, [2, 2, 2]))
    kv.close(kv.open(kv.match([1, 1, 1, 9])))
    fill(kv, [3] * 9)
    assert len(kv.match([1, 1, 1, 9]).blocks) == 1
    assert kv.match([2, 2, 2, 9]).blocks == []


def test_the_end_of_a_sequence_is_evicted_before_its_beginning() -> None:
    kv, _ = make(3)
    kv.close(fill(kv, [1, 1, 1, 2, 2, 2, 3, 3, 3]))
    fill(kv, [7])
    assert len(kv.match([1, 1, 1, 2, 2, 2, 3, 3, 3, 0]).blocks) == 2


def test_without_prefix_caching_nothing_is_found() -> None:
    kv, _ = make(prefix_caching=False)
    kv.close(fill(kv, [1, 2, 3, 4]))
    assert kv.match([1, 2, 3, 4, 5]).blocks == []


def test_a_fork_copies_only_the_block_it_writes() -> None:
    kv, memory = make()
    parent = fill(kv, [1, 2, 3, 4])
    child = kv.fork(parent, 4)
    assert kv.reserve(child, 4, 5)
    assert memory.copies == 1
    assert child.blocks[0] == parent.blocks[0] and child.blocks[1] != parent.blocks[1]


def test_reserve_that_does_not_fit_changes_nothing() -> None:
    kv, memory = make(2)
    parent = fill(kv, [1, 2, 3, 4])
    child = kv.fork(parent, 4)
    before = list(child.blocks)
    assert not kv.reserve(child, 4, 5)
    assert child.blocks == before and memory.copies == 0
    kv.check([parent, child])


def test_release_without_a_reference_is_refused() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(RuntimeError, match="released more often"):
        pool.release(block)


def test_check_names_a_leaked_block() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    with pytest.raises(RuntimeError, match=f"block {block} has 1 references, but 0 tables"):
        pool.check([])
