"""KV memory of sequences: block tables, prefix matching, forks, and copy-on-write."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from sonoran.backends.base import Backend

ROOT = b""
"""Key of the empty prefix, the parent of a sequence's first block."""


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the content address of a full block: a digest of its parent's key and its own token ids.

    The digest has 128 bits and is not Python's hash, so two prefixes never share a block by collision.
    """
    return blake2b(parent + array("i", tokens).tobytes(), digest_size=16).digest()


class BlockPool:
    """Who uses which block. Knows nothing of sequences, tokens or what the blocks hold.

    A block is *free* (in the free list), *held* (reference count of one or more) or *evictable*:
    unreferenced, but registered under the key of its contents, so that a later prompt may take it up again.
    Allocation prefers free blocks and then evicts the block that has been unused for longest.
    """

    def __init__(self, num_blocks: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.caching = caching
        self.reset()

    def reset(self) -> None:
        """Forget every reference and every cached block."""
        self._free = list(range(self.num_blocks - 1, -1, -1))
        self._references = [0] * self.num_blocks
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._block_of_key: dict[bytes, int] = {}
        self._key_of_block: dict[int, bytes] = {}

    @property
    def available(self) -> int:
        """Blocks that `allocate` can hand out now."""
        return len(self._free) + len(self._evictable)

    def references(self, block: int) -> int:
        """Return the reference count of a block."""
        return self._references[block]

    def is_cached(self, block: int) -> bool:
        """Tell whether the block is registered under a key."""
        return block in self._key_of_block

    def allocate(self) -> int:
        """Take one block with a reference count of one. Callers check `available` first."""
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._evictable.popitem(last=False)
            self.forget(block)
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a reference to a held or cached block."""
        if self._references[block] == 0:
            del self._evictable[block]
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Drop one reference; the last one makes the block free, or evictable if it is cached."""
        if self._references[block] <= 0:
            raise RuntimeError(f"KV block {block} was released more often than it was taken")
        self._references[block] -= 1
        if self._references[block] == 0:
            if block in self._key_of_block:
                self._evictable[block] = None
            else:
                self._free.append(block)

    def register(self, block: int, key: bytes) -> None:
        """Make a held, full block findable; the first block of equal contents stays the cached one."""
        if self.caching and key not in self._block_of_key and block not in self._key_of_block:
            self._block_of_key[key] = block
            self._key_of_block[block] = key

    def forget(self, block: int) -> None:
        """Take a block out of the cache, because its contents are about to change."""
        key = self._key_of_block.pop(block, None)
        if key is not None:
            del self._block_of_key[key]

    def lookup(self, key: bytes) -> int | None:
        """Return the cached block of that content without taking a reference."""
        return self._block_of_key.get(key)

    def check(self, held: Iterable[Sequence[int]] = ()) -> None:
        """Compare the counts with the block tables that exist; raise RuntimeError naming the difference."""
        expected: dict[int, int] = {}
        for table in held:
            for block in table:
                expected[block] = expected.get(block, 0) + 1
        self._check_counts(expected)
        states = set(self._free) | set(self._evictable) | set(expected)
        if (
            len(self._free) + len(self._evictable) + len(expected) != self.num_blocks
            or len(states) != self.num_blocks
        ):
            raise RuntimeError(
                f"KV blocks do not add up: {len(self._free)} free, {len(self._evictable)} evictable, "
                f"{len(expected)} held, of {self.num_blocks}"
            )
        if {block: key for key, block in self._block_of_key.items()} != self._key_of_block:
            raise RuntimeError("the prefix cache and its inverse disagree")
        stray = set(self._evictable) - set(self._key_of_block)
        if stray:
            raise RuntimeError(f"evictable KV blocks without a key: {sorted(stray)}")

    def _check_counts(self, expected: Mapping[int, int]) -> None:
        for block, count in enumerate(self._references):
            if count != expected.get(block, 0):
                raise RuntimeError(
                    f"KV block {block} has {count} references, but {expected.get(block, 0)} tables hold it"
                )


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
