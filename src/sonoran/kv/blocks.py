"""Blocks of KV memory: reference counts, a free list, and a least-recently-used cache of full blocks."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

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
