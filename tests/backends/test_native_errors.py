"""What the native backend refuses: malformed rows, broken weights, impossible options, use after close."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonoran.backends.base import Backend, Rows
from sonoran.backends.native import NativeBackend
from sonoran.errors import ConfigError, ModelError, NumericsError
from sonoran.models.source import ModelFile, open_model
from tests.backends.native_oracle import BLOCK_SIZE, native, text, trunk
from tests.oracles.row_contract import check_rows
from tests.tiny_models import make_gguf

BLOCKS = 3
VOCAB = 320


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    path = tmp_path_factory.mktemp("errors") / "tiny.gguf"
    make_gguf(path, "llama", hidden_size=32, intermediate_size=48, head_dim=8)
    return open_model(path)


@pytest.fixture(scope="module")
def backend(model_file: ModelFile) -> NativeBackend:
    return native(model_file, num_blocks=BLOCKS, threads=2)


def test_windows_of_some_layers_only_are_refused(model_file: ModelFile) -> None:
    short = dataclasses.replace(model_file.config, sliding_windows=(3,))
    with pytest.raises(ModelError, match="must name every layer"):
        native(dataclasses.replace(model_file, config=short))


def good() -> Rows:
    """Two trunk rows of sequence 1 and a branch on it; a lone row of sequence 0."""
    return Rows(
        tokens=i32(5, 6, 7, 8),
        positions=i32(0, 1, 2, 0),
        slots=i32(32, 33, 40, 3),
        sequences=i32(1, 1, 1, 0),
        trunk_lengths=i32(1, 2, 1, 0),
        wants_logits=i32(0, 1, 1, 1),
        block_tables=i32(0, -1, 2, -1).reshape(2, 2),
        extra_offsets=i32(0, 0, 0, 2, 3),
        extra_slots=i32(33, 40, 3),
    )


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


MALFORMED: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "token": ({"tokens": i32(5, 320, 7, 8)}, "row 1: token 320 is outside the vocabulary of 320"),
    "negative token": ({"tokens": i32(5, 6, -1, 8)}, "row 2: token -1"),
    "slot": ({"slots": i32(32, 33, 48, 3)}, "row 2: slot 48 is outside the KV memory"),
    "negative slot": ({"slots": i32(-1, 33, 40, 3)}, "row 0: slot -1"),
    "position": ({"positions": i32(0, -1, 2, 0)}, "row 1: negative position"),
    "sequence": ({"sequences": i32(1, 2, 1, 0)}, "row 1: unknown sequence"),
    "own slot": ({"slots": i32(32, 34, 40, 3)}, "row 1: the last slot it sees is 33, not its own 34"),
    "own extra slot": ({"extra_slots": i32(33, 41, 3)}, "row 2: the last slot it sees is 41, not its own 40"),
    "shared slot": (
        {"slots": i32(32, 33, 33, 3), "extra_slots": i32(32, 33, 3)},
        "two rows write slot 33",
    ),
    "trunk": ({"trunk_lengths": i32(1, 33, 1, 0)}, "row 1: trunk of 33 exceeds the block table"),
    "huge trunk": (
        {"trunk_lengths": i32(1, 2**31 - 1, 1, 0)},
        "row 1: trunk of 2147483647 exceeds the block table",
    ),
    "negative trunk": ({"trunk_lengths": i32(1, 2, -1, 0)}, "row 2: trunk of -1"),
    "unmapped": ({"block_tables": i32(0, -1, -1, 2).reshape(2, 2)}, "row 0: block table has no block"),
    "block": ({"block_tables": i32(0, -1, 3, -1).reshape(2, 2)}, "row 0: block table has no block"),
    "extra slot": ({"extra_slots": i32(48, 40, 3)}, "row 2: extra slot 48 is outside the KV memory"),
    "nothing": ({"extra_offsets": i32(0, 0, 0, 3, 3)}, "row 2: the last slot|row 3: sees nothing"),
    "cover": ({"extra_offsets": i32(0, 0, 0, 1, 2)}, "extra_offsets do not cover extra_slots"),
    "begin": ({"extra_offsets": i32(1, 1, 1, 2, 3)}, "extra_offsets do not cover extra_slots"),
    "order": ({"extra_offsets": i32(0, 2, 1, 2, 3)}, "row 0: |row 1: extra slots out of order"),
    "lengths": ({"positions": i32(0, 1, 2)}, "all fields of the rows must have the same length"),
    "wants": ({"wants_logits": i32(1, 1)}, "all fields of the rows must have the same length"),
    "offsets": ({"extra_offsets": i32(0, 0, 2, 3)}, "all fields of the rows must have the same length"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_rows_are_refused_by_name_and_value(backend: NativeBackend, case: str) -> None:
    changes, message = MALFORMED[case]
    with pytest.raises(ConfigError, match=message):
        backend.forward(dataclasses.replace(good(), **changes))


FIELDS = ("tokens", "positions", "slots", "sequences", "trunk_lengths", "extra_slots", "extra_offsets")


Edits = list[tuple[str, int, int]]
EDITS = st.lists(
    st.tuples(st.sampled_from(FIELDS), st.integers(0, 3), st.integers(-2, 50)), min_size=1, max_size=3
)


def assert_runs_exactly_what_keeps_the_contract(backend: Backend, edits: Edits) -> None:
    rows = good()
    for field, at, value in edits:
        values = getattr(rows, field)
        values[at % len(values)] = value
    try:
        check_rows(rows, VOCAB, BLOCKS, BLOCK_SIZE)
    except ConfigError:
        with pytest.raises(ConfigError):
            backend.forward(rows)
    else:
        assert np.isfinite(backend.forward(rows)).all()


@settings(max_examples=300, deadline=None)
@given(edits=EDITS)
def test_exactly_the_rows_that_keep_the_contract_run(backend: NativeBackend, edits: Edits) -> None:
    assert_runs_exactly_what_keeps_the_contract(backend, edits)


def test_a_refused_pass_leaves_the_memory_alone(backend: NativeBackend) -> None:
    table = i32(0, 1, 2)[None]
    ids = text(20)
    expected = backend.forward(trunk(ids, table=table))[-1:]
    bad = trunk(text(20, 1), table=table)
    bad.tokens[-1] = VOCAB
    with pytest.raises(ConfigError):
        backend.forward(bad)
    np.testing.assert_array_equal(backend.forward(trunk(ids, 19, table)), expected)


def test_no_rows_give_no_logits(backend: NativeBackend) -> None:
    assert backend.forward(trunk(text(3), 3)).shape == (0, VOCAB)


@pytest.mark.parametrize("blocks", [(3, 0), (0, 3), (-1, 0)])
def test_blocks_outside_the_memory_are_not_copied(backend: NativeBackend, blocks: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=r"block (3|-1) is outside the KV memory of 3 blocks"):
        backend.copy_block(*blocks)


@pytest.mark.parametrize("ids", [[], [-1], [0, 320]])
def test_output_is_restricted_to_known_tokens(backend: NativeBackend, ids: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"token ids must lie in 0..319 and not be empty"):
        backend.restrict_output(ids)


def broken(model_file: ModelFile, name: str, value: float) -> ModelFile:
    """The model with one weight replaced."""
    info = model_file.tensors[name]
    values = info.data.copy().view(np.float32)
    values[7] = value
    tensors: dict[str, Any] = dict(model_file.tensors)
    tensors[name] = dataclasses.replace(info, data=values.view(np.uint8))
    return dataclasses.replace(model_file, tensors=tensors)


WEIGHTS = [
    "layers.0.q", "layers.0.k", "layers.1.v", "layers.0.o", "layers.1.gate", "layers.0.up", "layers.1.down",
    "output", "final_norm", "layers.0.attn_norm", "layers.1.ffn_norm",
]  # fmt: skip


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_are_not_finite_are_an_error_not_a_text(
    model_file: ModelFile, name: str, value: float
) -> None:
    model = native(broken(model_file, name, value))
    with pytest.raises(NumericsError, match="not finite; its weights are likely corrupt"):
        model.forward(trunk(text(4)))


def test_only_texts_that_meet_the_broken_weight_fail(model_file: ModelFile) -> None:
    model = native(broken(model_file, "embed", np.nan))  # the 7th value of token 0
    assert np.isfinite(model.forward(trunk(i32(1, 2, 3)))).all()
    with pytest.raises(NumericsError):
        model.forward(trunk(i32(1, 0, 3)))
    assert np.isfinite(model.forward(trunk(i32(1, 2, 3)))).all()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("scale", [0x7C00, 0xFC00, 0x7E00])
def test_scales_that_are_not_finite_are_an_error(tmp_path: Path, kind: str, scale: int) -> None:
    make_gguf(tmp_path / "tiny.gguf", "llama", kind)
    model_file = open_model(tmp_path / "tiny.gguf")
    info = model_file.tensors["layers.1.up"]
    data = info.data.copy()
    at = 208 if kind == "Q6_K" else 0
    data[at : at + 2] = np.array([scale], np.uint16).view(np.uint8)
    tensors: dict[str, Any] = dict(model_file.tensors)
    tensors["layers.1.up"] = dataclasses.replace(info, data=data)
    model = native(dataclasses.replace(model_file, tensors=tensors))
    with pytest.raises(NumericsError):
        model.forward(trunk(text(4)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 8}, "block_size must be a multiple of 16, got 8"),
        ({"block_size": 24}, "block_size must be a multiple of 16, got 24"),
        ({"num_blocks": 0}, "num_blocks must be at least 1, got 0"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"threads": None, "cores": ()}, "cannot be used; this process may use"),
        ({"threads": None, "cores": (0, 4096)}, r"cores \[.*4096\] cannot be used; this process may use"),
        ({"instruction_set": "avx1024"}, "instruction set 'avx1024' is unknown .* valid: auto, .*, portable"),
    ],
)
def test_impossible_options_are_refused(model_file: ModelFile, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        native(model_file, **options)


def test_a_missing_tensor_is_named(model_file: ModelFile) -> None:
    tensors = {name: info for name, info in model_file.tensors.items() if name != "layers.1.ffn_norm"}
    with pytest.raises(ModelError, match=r"the model has no tensor layers\.1\.ffn_norm"):
        native(dataclasses.replace(model_file, tensors=tensors))


def test_close_frees_and_may_be_called_twice(model_file: ModelFile) -> None:
    model = native(model_file)
    model.close()
    model.close()
    for use in (lambda: model.forward(trunk(text(2))), lambda: model.copy_block(0, 1), lambda: model.threads):
        with pytest.raises(ConfigError, match="the backend is closed"):
            use()
