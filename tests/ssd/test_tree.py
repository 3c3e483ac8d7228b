"""Index arithmetic: the worked examples, and that a branch sees its own path and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonoran.backends.rows import TrunkPart, trunk_rows
from sonoran.errors import ConfigError
from sonoran.ssd.tree import TreePart, build_tree, scratch_slots_needed, tree_rows
from sonoran.types import Outcome

FAN_OUT_212 = [Outcome(0, 50), Outcome(0, 51), Outcome(1, 52), Outcome(2, 53), Outcome(2, 54)]


def test_worked_example_trunk() -> None:
    # n = 10, K = 2: the bonus token at 9, s_1 at 10, s_2 at 11, context n + K = 12.
    rows = trunk_rows([TrunkPart([90, 91, 92], 9, 3, list(range(22)))], block_size=1)
    assert rows.positions.tolist() == rows.slots.tolist() == [9, 10, 11]
    assert rows.trunk_lengths.tolist() == [10, 11, 12]
    assert rows.wants_logits.tolist() == [1, 1, 1]


def test_worked_example_tree() -> None:
    # Same round, lists [2, 1, 2]; with slot = position (block size 1) scratch starts at n - 1 + K + 1 = 12.
    part = TreePart(FAN_OUT_212, num_tokens=10, steps=2, block_table=range(12), scratch_blocks=range(12, 22))
    tree = build_tree([part], block_size=1)
    assert tree.first_tokens.tolist() == [50, 51, 52, 53, 54]
    first = tree_rows(tree, 0, tree.first_tokens)
    assert first.slots.tolist() == [12, 13, 14, 15, 16]
    assert first.positions.tolist() == [10, 10, 11, 12, 12]
    assert first.trunk_lengths.tolist() == [10, 10, 11, 12, 12]  # up to the bonus, s_1, s_2
    second = tree_rows(tree, 1, np.array([60, 61, 62, 63, 64], np.int32))
    assert second.slots.tolist() == [17, 18, 19, 20, 21]
    assert second.positions.tolist() == [11, 11, 12, 13, 13]
    assert second.extra_offsets.tolist() == [0, 2, 4, 6, 8, 10]
    assert second.extra_slots.tolist() == [12, 17, 13, 18, 14, 19, 15, 20, 16, 21]
    # Draft slots 9..21 are K + 1 + K * 5 = 13.
    assert 3 + scratch_slots_needed(5, 2) == 13


def test_worked_example_visibility() -> None:
    # Prefix 2, K = 2, one guess per depth, step 1: the mask printed in the reference, row by row.
    outcomes = [Outcome(0, 1), Outcome(1, 2), Outcome(2, 3)]
    tree = build_tree([TreePart(outcomes, 3, 2, range(5), range(5, 11))], block_size=1)
    rows = tree_rows(tree, 1, np.array([4, 5, 6], np.int32))
    mask = np.zeros((3, 11), int)
    for i in range(3):
        mask[i, : rows.trunk_lengths[i]] = 1
        mask[i, rows.extra_slots[rows.extra_offsets[i] : rows.extra_offsets[i + 1]]] = 1
    assert mask.tolist() == [
        [1, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0],
        [1, 1, 1, 1, 0, 0, 1, 0, 0, 1, 0],
        [1, 1, 1, 1, 1, 0, 0, 1, 0, 0, 1],
    ]


def test_next_trunk_overwrites_from_the_new_bonus() -> None:
    # Outcome k = 1 of the worked example: n' = 12, so the next trunk pass rewrites 11, 12, 13.
    n, accepted = 10, 1
    rows = trunk_rows([TrunkPart([52, 1, 2], n + accepted, 3, list(range(20)))], block_size=1)
    assert rows.positions.tolist() == [11, 12, 13]


def test_catching_up_wants_logits_of_the_last_rows_only() -> None:
    parts = [TrunkPart([1, 2, 3, 4, 5], 6, 2, [3, 1, 0]), TrunkPart([7], 0, 1, [2])]
    rows = trunk_rows(parts, block_size=4)
    assert rows.tokens.tolist() == [1, 2, 3, 4, 5, 7]
    assert rows.positions.tolist() == [6, 7, 8, 9, 10, 0]
    assert rows.slots.tolist() == [6, 7, 0, 1, 2, 8]
    assert rows.sequences.tolist() == [0, 0, 0, 0, 0, 1]
    assert rows.wants_logits.tolist() == [0, 0, 0, 1, 1, 1]
    assert rows.block_tables.tolist() == [[3, 1, 0], [2, -1, -1]]


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[TreePart], int]:
    block_size = draw(st.integers(1, 8))
    parts, next_block = [], 0
    for _ in range(draw(st.integers(0, 4))):
        outcomes = [Outcome(k, 10 * k + j) for k in range(4) for j in range(draw(st.integers(0, 3)))]
        steps, n = draw(st.integers(0, 4)), draw(st.integers(1, 30))
        own = -(-(n + 4) // block_size)
        scratch = -(-scratch_slots_needed(len(outcomes), steps) // block_size)
        table = list(range(next_block, next_block + own))
        parts.append(
            TreePart(outcomes, n, steps, table, list(range(next_block + own, next_block + own + scratch)))
        )
        next_block += own + scratch
    return parts, block_size


@given(forests())
def test_every_branch_sees_its_own_path(forest: tuple[list[TreePart], int]) -> None:
    parts, block_size = forest
    tree = build_tree(parts, block_size)
    assert len(tree) == sum(len(p.outcomes) for p in parts)
    owner: dict[int, int] = {}  # slot -> branch that wrote it
    token_at: dict[int, int] = {}
    for step in range(max((p.steps for p in parts), default=0)):
        active = tree.active(step)
        assert all(parts[tree.sequences[b]].steps > step for b in active)
        tokens = active.astype(np.int32) * 100 + step
        rows = tree_rows(tree, step, tokens)
        assert len(set(rows.slots.tolist())) == len(active)
        for i, branch in enumerate(active):
            part = parts[tree.sequences[branch]]
            slot = int(rows.slots[i])
            assert slot not in owner
            assert slot // block_size in part.scratch_blocks
            owner[slot], token_at[slot] = int(branch), int(tokens[i])
            seen = rows.extra_slots[rows.extra_offsets[i] : rows.extra_offsets[i + 1]].tolist()
            assert [token_at[s] for s in seen] == [int(branch) * 100 + t for t in range(step + 1)]
            assert {owner[s] for s in seen} == {int(branch)}
            assert rows.positions[i] == rows.trunk_lengths[i] + step
            assert rows.trunk_lengths[i] <= len(part.block_table) * block_size


def test_what_does_not_fit_is_refused_with_numbers() -> None:
    with pytest.raises(ConfigError, match="5 branches of 2 tokens need 10 scratch slots, got 8"):
        build_tree([TreePart(FAN_OUT_212, 10, 2, [0], [1, 2])], block_size=4)
    with pytest.raises(ConfigError, match="1 blocks of 4 do not hold 5 positions"):
        trunk_rows([TrunkPart([1, 2], 3, 1, [0])], block_size=4)
    with pytest.raises(ConfigError, match="cannot give 3 logits"):
        trunk_rows([TrunkPart([1, 2], 0, 3, [0])], block_size=4)
    tree = build_tree([TreePart(FAN_OUT_212, 10, 2, [0, 1, 2], [3, 4, 5])], block_size=4)
    with pytest.raises(ConfigError, match="step 0 runs 5 branches, got 4 tokens"):
        tree_rows(tree, 0, np.zeros(4, np.int32))
