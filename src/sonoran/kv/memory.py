"""KV memory of sequences: block tables, prefix matching, forks, and copy-on-write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sonoran.backends.base import Backend
from sonoran.kv.blocks import ROOT, BlockPool, block_key


@dataclass(slots=True)
class BlockTable:
    """Blocks of one sequence in order of position, and the keys of its leading full, committed blocks."""

    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)


class KVMemory:
    """Block tables over the KV memory of one backend. Lengths and positions are in tokens."""

    def __init__(self, backend: Backend, *, prefix_caching: bool = True) -> None:
        self.block_size = backend.block_size
        self.pool = BlockPool(backend.num_blocks, caching=prefix_caching)
        self._copy_block = backend.copy_block

    @property
    def capacity(self) -> int:
        """Tokens that a single sequence could hold."""
        return self.pool.num_blocks * self.block_size

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold."""
        return 1.0 - self.pool.available / self.pool.num_blocks

    def blocks_for(self, length: int) -> int:
        """Return the number of blocks that `length` tokens take."""
        return -(-length // self.block_size)

    def match(self, tokens: Sequence[int]) -> BlockTable:
        """Return the cached blocks that a prompt begins with, without taking references.

        The last token is never matched: its row has to be computed, since its logits are wanted.
        """
        table = BlockTable()
        key, size = ROOT, self.block_size
        for end in range(size, len(tokens), size):
            key = block_key(key, tokens[end - size : end])
            block = self.pool.lookup(key)
            if block is None:
                break
            table.blocks.append(block)
            table.keys.append(key)
        return table

    def shortfall(self, shared: BlockTable, length: int) -> int:
        """Return how many blocks are lacking for `length` tokens that begin with `shared` (from `match`)."""
        # Taking up a block that nobody holds uses it up as surely as allocating one.
        idle = sum(1 for block in shared.blocks if self.pool.references(block) == 0)
        return self.blocks_for(length) - len(shared.blocks) + idle - self.pool.available

    def open(self, shared: BlockTable) -> BlockTable:
        """Start a sequence with references to the blocks found by `match`; it covers their tokens."""
        for block in shared.blocks:
            self.pool.share(block)
        return BlockTable(list(shared.blocks), list(shared.keys))

    def fork(self, table: BlockTable, length: int) -> BlockTable:
        """Start a sequence that shares the first `length` tokens, a partly filled last block included."""
        blocks = table.blocks[: self.blocks_for(length)]
        for block in blocks:
            self.pool.share(block)
        return BlockTable(blocks, table.keys[: length // self.block_size])

    def reserve(self, table: BlockTable, start: int, end: int) -> bool:
        """Make positions ``start .. end - 1`` writable: extend the table, copy shared blocks.

        Returns False, with nothing changed, when there are not enough blocks.
        """
        first = start // self.block_size
        written = range(first, min(len(table.blocks), self.blocks_for(end)))
        shared = [index for index in written if self.pool.references(table.blocks[index]) > 1]
        extra = max(0, self.blocks_for(end) - len(table.blocks))
        if len(shared) + extra > self.pool.available:
            return False
        for index in shared:
            copy = self.pool.allocate()
            self._copy_block(table.blocks[index], copy)
            self.pool.release(table.blocks[index])
            table.blocks[index] = copy
        for index in written:
            self.pool.forget(table.blocks[index])
        del table.keys[first:]
        table.blocks.extend(self.pool.allocate() for _ in range(extra))
        return True

    def commit(self, table: BlockTable, tokens: Sequence[int], computed: int) -> None:
        """Register the blocks filled by the first `computed` tokens, which are final, for later prompts."""
        if not self.pool.caching:
            return
        size = self.block_size
        for index in range(len(table.keys), computed // size):
            parent = table.keys[index - 1] if index else ROOT
            key = block_key(parent, tokens[index * size : (index + 1) * size])
            table.keys.append(key)
            self.pool.register(table.blocks[index], key)

    def truncate(self, table: BlockTable, length: int) -> None:
        """Give back the blocks beyond `length` tokens."""
        keep = self.blocks_for(length)
        while len(table.blocks) > keep:
            self.pool.release(table.blocks.pop())
        del table.keys[length // self.block_size :]

    def close(self, table: BlockTable) -> None:
        """Give back every block of a sequence; the last ones are evicted first, so prefixes live longest."""
        self.truncate(table, 0)

    def reset(self) -> None:
        """Forget all tables and all cached prefixes."""
        self.pool.reset()

    def check(self, tables: Iterable[BlockTable]) -> None:
        """Raise RuntimeError when the pool and the existing tables disagree."""
        self.pool.check(table.blocks for table in tables)
