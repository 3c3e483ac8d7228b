"""Branch rows, whose keys lie in explicit slots, equal the linear text they stand for, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonoran.backends.base import Rows
from sonoran.backends.native import NativeBackend
from tests.backends.native_rows import BLOCK_SIZE, CASES, Case, assert_same_bits, make_case

TABLE = np.array([[21, 16, 18]], np.int32)  # of the trunk
OTHER = np.arange(0, 12 * BLOCK_SIZE)  # slots that branches may use


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp(request.param), request.param)


class Tree:
    """Random tokens that hang on a trunk, in random slots.

    ``paths[i]`` are the nodes from the trunk to node i, itself included; ``trunks[i]`` is the length of the
    part of the trunk that it continues.
    """

    def __init__(self, paths: list[list[int]], trunks: list[int], seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.paths, self.trunks = paths, trunks
        self.tokens = rng.integers(0, 320, len(paths)).astype(np.int32)
        self.slots = rng.choice(OTHER, len(paths), replace=False).astype(np.int32)

    @staticmethod
    def grown(trunk_length: int, parents: list[int], seed: int) -> Tree:
        """A node continues an earlier node, or a random part of the trunk where its parent comes later."""
        rng = np.random.default_rng(seed)
        paths: list[list[int]] = []
        trunks: list[int] = []
        for i, parent in enumerate(parents):
            paths.append([*paths[parent], i] if parent < i else [i])
            trunks.append(trunks[parent] if parent < i else int(rng.integers(0, trunk_length + 1)))
        return Tree(paths, trunks, seed)

    def rows(self, nodes: list[int]) -> Rows:
        extra = [self.slots[self.paths[i]] for i in nodes]
        return Rows(
            tokens=self.tokens[nodes],
            positions=np.array([self.trunks[i] + len(self.paths[i]) - 1 for i in nodes], np.int32),
            slots=self.slots[nodes],
            sequences=np.zeros(len(nodes), np.int32),
            trunk_lengths=np.array([self.trunks[i] for i in nodes], np.int32),
            wants_logits=np.ones(len(nodes), np.int32),
            block_tables=TABLE,
            extra_offsets=np.cumsum([0, *map(len, extra)]).astype(np.int32),
            extra_slots=np.concatenate(extra).astype(np.int32),
        )

    def text(self, ids: np.ndarray, node: int) -> np.ndarray:
        """The linear text that ends with a node."""
        return np.concatenate([ids[: self.trunks[node]], self.tokens[self.paths[node]]])


def fill_trunk(backend: NativeBackend, ids: np.ndarray) -> None:
    n = len(ids)
    backend.forward(Rows.trunk(ids, np.arange(n), np.zeros(n), TABLE, BLOCK_SIZE, np.zeros(n)))


@settings(max_examples=25, deadline=None)
@given(
    parents=st.lists(st.integers(0, 15), min_size=1, max_size=12),
    which=st.integers(0, 6),
    in_levels=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_trees(case: Case, parents: list[int], which: int, in_levels: bool, seed: int) -> None:
    backend = case.backends[which % len(case.backends)]
    ids = case.texts[0]
    tree = Tree.grown(len(ids), parents, seed)
    fill_trunk(backend, ids)
    depths = [len(path) for path in tree.paths]
    levels = [[i for i in range(len(parents)) if depths[i] == d] for d in sorted(set(depths))]
    for nodes in levels if in_levels else [list(range(len(parents)))]:
        shuffled = [int(i) for i in np.random.default_rng(seed).permutation(nodes)]
        logits = backend.forward(tree.rows(shuffled))
        for node, values in zip(shuffled, logits, strict=True):
            linear = tree.text(ids, node)
            assert_same_bits(values, case.expected(linear, len(linear) - 1)[0])


@pytest.mark.parametrize("trunk_length", [0, 1, 15, 16, 17, 45])
def test_a_branch_of_forty_tokens_in_scattered_slots(case: Case, trunk_length: int) -> None:
    """More extra slots than one tile of 16, and more than the sliding window."""
    ids = case.texts[0][:trunk_length]
    tree = Tree([list(range(i + 1)) for i in range(40)], [trunk_length] * 40, trunk_length)
    expected = case.expected(tree.text(ids, 39), trunk_length)
    backend = case.backends[2]
    if trunk_length:
        fill_trunk(backend, ids)
    assert_same_bits(backend.forward(tree.rows(list(range(40)))), expected)


def test_branches_and_trunk_rows_of_other_texts_share_a_pass(case: Case) -> None:
    """Two branches on one text, verification rows of another, in one pass."""
    ids, other = case.texts[0], case.texts[2]
    backend = case.backends[3]
    fill_trunk(backend, ids)
    tree = Tree([[0], [0, 1], [2]], [30] * 3, seed=3)
    branch = tree.rows([2, 0, 1])
    n = len(other)
    tables = np.array([[21, 16, 18], [14, 15, -1]], np.int32)
    line = Rows.trunk(other, np.arange(n), np.ones(n), tables, BLOCK_SIZE, np.ones(n))
    fields = ("tokens", "positions", "slots", "sequences", "trunk_lengths", "wants_logits")
    joined = {name: np.concatenate([getattr(branch, name), getattr(line, name)]) for name in fields}
    offsets = np.concatenate([branch.extra_offsets, np.full(n, branch.extra_offsets[-1], np.int32)])
    rows = Rows(**joined, block_tables=tables, extra_offsets=offsets, extra_slots=branch.extra_slots)
    logits = backend.forward(rows)
    for node, values in zip([2, 0, 1], logits[:3], strict=True):
        linear = tree.text(ids, node)
        assert_same_bits(values, case.expected(linear, len(linear) - 1)[0])
    assert_same_bits(logits[3:], case.alone[2])
