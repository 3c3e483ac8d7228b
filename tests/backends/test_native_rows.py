"""Row independence: a row's logits are the same bits in any batch, order, split, threads, instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonoran.backends.base import Rows
from sonoran.backends.native import NativeBackend
from tests.backends.native_rows import BLOCK_SIZE, CASES, NUM_BLOCKS, Case, assert_same_bits, make_case


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp(request.param), request.param)


def run_in_pieces(
    backend: NativeBackend, texts: list[np.ndarray], steps: list[list[int]], rng: np.random.Generator
) -> dict[tuple[int, int], np.ndarray]:
    """Run all texts at once, ``steps[i][j]`` rows of text j in pass i, in random order, on random blocks.

    Returns the logits of a random part of the rows, by (text, position).
    """
    blocks = iter(rng.permutation(NUM_BLOCKS))
    tables = np.full((len(texts), 4), -1, np.int32)
    for i, ids in enumerate(texts):
        for b in range(-(-len(ids) // BLOCK_SIZE)):
            tables[i, b] = next(blocks)
    done = [0] * len(texts)
    result = {}
    for step in [*steps, [len(ids) for ids in texts]]:  # whatever is left comes last, in one pass
        rows = []
        for i, count in enumerate(step):
            end = min(done[i] + count, len(texts[i]))
            rows += [(i, position) for position in range(done[i], end)]
            done[i] = end
        if not rows:
            continue
        order = rng.permutation(len(rows))
        sequences, positions = np.array(rows, np.int32)[order].T
        tokens = [texts[i][p] for i, p in zip(sequences, positions, strict=True)]
        wants = rng.integers(0, 2, len(rows))
        logits = backend.forward(
            Rows.trunk(np.array(tokens, np.int32), positions, sequences, tables, BLOCK_SIZE, wants)
        )
        wanted = np.flatnonzero(wants)
        assert logits.shape == (len(wanted), backend.config.vocab_size)
        for row, values in zip(wanted, logits, strict=True):
            result[int(sequences[row]), int(positions[row])] = values
    return result


STEPS = st.lists(st.lists(st.integers(0, 20), min_size=4, max_size=4), max_size=6)


@settings(max_examples=25, deadline=None)
@given(steps=STEPS, which=st.integers(0, 6), seed=st.integers(0, 2**32 - 1))
def test_any_batches(case: Case, steps: list[list[int]], which: int, seed: int) -> None:
    backend = case.backends[which % len(case.backends)]
    logits = run_in_pieces(backend, case.texts, steps, np.random.default_rng(seed))
    for (i, position), values in logits.items():
        assert_same_bits(values, case.alone[i][position])


def test_every_backend_repeats_every_row(case: Case) -> None:
    names = {(backend.threads, backend.instruction_set) for backend in case.backends}
    assert {threads for threads, _ in names} == {1, 2, 3, 4}
    for backend in case.backends:
        for ids, expected in zip(case.texts, case.alone, strict=True):
            table = np.array([[5, 0, 9]], np.int32)
            n = len(ids)
            rows = Rows.trunk(ids, np.arange(n), np.zeros(n), table, BLOCK_SIZE, np.ones(n))
            assert_same_bits(backend.forward(rows), expected)


def test_rows_without_logits_leave_them_out(case: Case) -> None:
    ids = case.texts[2]
    n = len(ids)
    table = np.array([[3, 4]], np.int32)
    none = Rows.trunk(ids[:-1], np.arange(n - 1), np.zeros(n - 1), table, BLOCK_SIZE, np.zeros(n - 1))
    assert case.backends[0].forward(none).shape == (0, case.backends[0].config.vocab_size)
    last = Rows.trunk(ids[-1:], [n - 1], [0], table, BLOCK_SIZE, [1])
    assert_same_bits(case.backends[0].forward(last), case.alone[2][-1:])


def test_a_copied_block_serves_another_sequence(case: Case) -> None:
    ids = case.texts[1]
    model = case.backends[1]
    run_in_pieces(model, case.texts, [], np.random.default_rng(1))  # fills the memory
    n = len(ids)
    model.forward(Rows.trunk(ids, np.arange(n), np.zeros(n), np.array([[0, 1, 2]]), BLOCK_SIZE, np.zeros(n)))
    for source, destination in ((0, 10), (1, 7), (2, 23)):
        model.copy_block(source, destination)
    overwritten = Rows.trunk(ids[:16], np.arange(16), np.zeros(16), np.array([[0]]), BLOCK_SIZE, np.zeros(16))
    model.forward(overwritten)
    rows = Rows.trunk(ids[-1:], [n - 1], [0], np.array([[10, 7, 23]]), BLOCK_SIZE, [1])
    assert_same_bits(model.forward(rows), case.alone[1][-1:])


@settings(max_examples=15, deadline=None)
@given(tokens=st.sets(st.integers(0, 319), min_size=1, max_size=40), count=st.integers(1, 5))
def test_restricted_output_keeps_the_bits(case: Case, tokens: set[int], count: int) -> None:
    """Logits of the blocks of 16 ids that are kept, minus infinity elsewhere."""
    model: Any = case.backends[0]
    ids = case.texts[3][:count]
    table = np.array([[11]], np.int32)
    rows = Rows.trunk(ids, np.arange(count), np.zeros(count), table, BLOCK_SIZE, np.ones(count))
    try:
        model.restrict_output(sorted(tokens))
        logits = model.forward(rows)
    finally:
        model.restrict_output(range(model.config.vocab_size))
    kept = np.isin(np.arange(case.plain.config.vocab_size) // 16, np.array(sorted(tokens)) // 16)
    assert_same_bits(logits[:, kept], case.alone[3][:count][:, kept])
    assert np.all(logits[:, ~kept] == -np.inf)
    assert_same_bits(model.forward(rows), case.alone[3][:count])
