"""Index arithmetic of a draft round: which position, slot and visible context every row has.

With n tokens known, the bonus token included, the trunk pass runs [bonus, s_1..s_K] at positions n - 1 .. n
- 1 + K, in the sequence's own blocks. A branch that guesses "exactly j accepted" sits at position n + j + s
in tree step s; its keys and values go to scratch slots, because several branches share a position. It sees
the trunk up to s_j, that is n + j positions, and then its own slots of steps 0..s, so no mask is needed and
the cost of a branch does not grow with the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sonoran.backends.base import Rows
from sonoran.errors import ConfigError
from sonoran.types import IntArray, Outcome


@dataclass(frozen=True, slots=True)
class TrunkPart:
    """One sequence's rows of a trunk pass: ``tokens`` from ``start`` on, logits for the last ones."""

    tokens: Sequence[int]  # what the draft has not read yet up to the bonus token, then the speculation
    start: int
    num_logits: int  # K + 1
    block_table: Sequence[int]


def trunk_rows(parts: Sequence[TrunkPart], block_size: int) -> Rows:
    """Build one trunk pass over many sequences; logits come in the order of the parts.

    Raises ConfigError when a part has no tokens, wants more logits than tokens, or its blocks do not reach.
    """
    tokens, positions, sequences, wants = [], [], [], []
    for i, part in enumerate(parts):
        size, end = len(part.tokens), part.start + len(part.tokens)
        if not 0 <= part.num_logits <= size or size == 0 or part.start < 0:
            raise ConfigError(
                f"a trunk part of {size} tokens from {part.start} cannot give {part.num_logits} logits"
            )
        if end > len(part.block_table) * block_size:
            raise ConfigError(f"{len(part.block_table)} blocks of {block_size} do not hold {end} positions")
        tokens.append(np.asarray(part.tokens, np.int32))
        positions.append(np.arange(part.start, end, dtype=np.int32))
        sequences.append(np.full(size, i, np.int32))
        wants.append((np.arange(size) >= size - part.num_logits).astype(np.int32))
    return Rows.trunk(
        _join(tokens),
        _join(positions),
        _join(sequences),
        pad_tables([p.block_table for p in parts]),
        block_size,
        _join(wants),
    )


@dataclass(frozen=True, slots=True)
class TreePart:
    """One sequence's branches: the guesses about the verification of its speculation, and where they live."""

    outcomes: Sequence[Outcome]
    num_tokens: int  # n: known tokens, the last bonus token included, the speculation not
    steps: int  # tokens to draft per branch
    block_table: Sequence[int]
    scratch_blocks: Sequence[int]  # their slots are the caller's, and free for this round


@dataclass(frozen=True, slots=True)
class Tree:
    """All branches of all sequences, in the order of the parts; built once per round."""

    first_tokens: IntArray  # [N] the guessed bonus tokens, which step 0 reads
    positions: IntArray  # [N] position at step 0
    trunk_lengths: IntArray  # [N]
    sequences: IntArray  # [N] index of the part
    steps: IntArray  # [N] steps of the branch
    slots: IntArray  # [max steps, N], -1 where a branch has ended
    block_tables: IntArray

    def __len__(self) -> int:
        return int(self.first_tokens.shape[0])

    def active(self, step: int) -> IntArray:
        """Return the indices of the branches that run in ``step``."""
        return np.flatnonzero(self.steps > step).astype(np.int32)


def scratch_slots_needed(num_branches: int, steps: int) -> int:
    """Return the scratch slots of one sequence's branches: one for each branch and step."""
    return num_branches * steps


def build_tree(parts: Sequence[TreePart], block_size: int) -> Tree:
    """Lay out the branches of many sequences; slot ``step * branches + branch`` of a part's scratch blocks.

    Raises ConfigError when the scratch blocks are too few, with the numbers.
    """
    depth = max((p.steps for p in parts), default=0)
    tokens, positions, trunks, sequences, steps, slots = [], [], [], [], [], []
    for i, part in enumerate(parts):
        count = len(part.outcomes)
        accepted = np.array([o.accepted for o in part.outcomes], np.int32)
        needed = scratch_slots_needed(count, part.steps)
        blocks = np.asarray(part.scratch_blocks, np.int32)
        free = (blocks[:, None] * block_size + np.arange(block_size, dtype=np.int32)).reshape(-1)
        if free.size < needed:
            raise ConfigError(
                f"{count} branches of {part.steps} tokens need {needed} scratch slots, got {free.size}"
            )
        own = np.full((depth, count), -1, np.int32)
        own[: part.steps] = free[:needed].reshape(part.steps, count)
        tokens.append(np.array([o.bonus for o in part.outcomes], np.int32))
        positions.append(part.num_tokens + accepted)
        trunks.append(part.num_tokens + accepted)
        sequences.append(np.full(count, i, np.int32))
        steps.append(np.full(count, part.steps, np.int32))
        slots.append(own)
    return Tree(
        first_tokens=_join(tokens),
        positions=_join(positions),
        trunk_lengths=_join(trunks),
        sequences=_join(sequences),
        steps=_join(steps),
        slots=np.concatenate(slots, axis=1) if slots else np.zeros((0, 0), np.int32),
        block_tables=pad_tables([p.block_table for p in parts]),
    )


def tree_rows(tree: Tree, step: int, tokens: IntArray) -> Rows:
    """Build tree step ``step``: one row per active branch, all with logits.

    ``tokens`` are one per active branch: the guessed bonus tokens in step 0, then what the previous step
    drafted. Raises ConfigError when their number is wrong.
    """
    active = tree.active(step)
    if len(tokens) != len(active):
        raise ConfigError(f"step {step} runs {len(active)} branches, got {len(tokens)} tokens")
    return Rows(
        tokens=np.asarray(tokens, np.int32),
        positions=(tree.positions[active] + step).astype(np.int32),
        slots=tree.slots[step, active] if len(active) else np.zeros(0, np.int32),
        sequences=tree.sequences[active],
        trunk_lengths=tree.trunk_lengths[active],
        wants_logits=np.ones(len(active), np.int32),
        block_tables=tree.block_tables,
        extra_offsets=(np.arange(len(active) + 1) * (step + 1)).astype(np.int32),
        extra_slots=np.ascontiguousarray(tree.slots[: step + 1, active].T).reshape(-1),
    )


def pad_tables(tables: Sequence[Sequence[int]]) -> IntArray:
    """Stack block tables of different lengths, int32[sequences, longest], unused entries -1."""
    padded = np.full((len(tables), max((len(t) for t in tables), default=0)), -1, np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return padded


def _join(arrays: Sequence[IntArray]) -> IntArray:
    return np.concatenate(arrays).astype(np.int32) if arrays else np.zeros(0, np.int32)
