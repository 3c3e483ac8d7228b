"""Reading whole GGUF files: names, shapes, values, configuration, metadata."""

import gguf
import numpy as np
import pytest

from sonoran.errors import ModelError
from sonoran.models.source import open_model
from sonoran.models.tensors import MATRIX_TYPES, dequantize, expected_shapes
from sonoran.models.tokenizer.tokenizer import Tokenizer
from tests.tiny_models import (
    LLAMA3_SCALING,
    gguf_name,
    make_gguf,
    make_hf_dir,
    random_weights,
    tensor_shapes,
    tiny_dims,
)
from tests.tiny_tokenizer import CHAT_TEMPLATE, tiny_tokenizer
from tests.tiny_weights import interleave_heads, llama3_factors

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "num_kv_heads": 1, "num_layers": 1}


@pytest.mark.parametrize("kind", MATRIX_TYPES)
def test_every_type_is_read_raw_and_dequantised_exactly(tmp_path, kind):
    path = tmp_path / "model.gguf"
    make_gguf(path, types=kind, num_layers=1)
    model = open_model(path)
    by_name = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert set(model.tensors) == set(tensor_shapes(tiny_dims("llama", num_layers=1)))
    for name, tensor in model.tensors.items():
        there = by_name[gguf_name(name)]
        assert tensor.dtype == there.tensor_type.name == (kind if len(tensor.shape) == 2 else "F32")
        assert tensor.shape == tuple(reversed(there.shape.tolist()))
        assert tensor.data.dtype == np.uint8
        assert tensor.data.tobytes() == there.data.tobytes()
        assert not tensor.data.flags.writeable
        exact = gguf.quants.dequantize(there.data, there.tensor_type).reshape(tensor.shape)
        values = dequantize(tensor)
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, exact)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_values_are_those_that_were_written(tmp_path, kind):
    dims = make_gguf(tmp_path / "model.gguf", types=kind, seed=3)
    model = open_model(tmp_path / "model.gguf")
    tolerance = {"F32": 0, "F16": 1e-3, "BF16": 4e-3, "Q8_0": 1e-2}[kind]
    for name, weight in random_weights(dims, seed=3).items():
        last = name.rpartition(".")[2]
        if last in ("q", "k"):
            weight = interleave_heads(weight, dims.num_heads if last == "q" else dims.num_kv_heads)
        scale = np.abs(weight).max()
        np.testing.assert_allclose(dequantize(model.tensors[name]), weight, rtol=0, atol=tolerance * scale)


def test_mixed_types_by_name_and_last_part(tmp_path):
    types = {"default": "Q4_K", "down": "Q6_K", "layers.1.q": "Q5_0", "embed": "F16"}
    make_gguf(tmp_path / "model.gguf", types=types)
    found = {name: tensor.dtype for name, tensor in open_model(tmp_path / "model.gguf").tensors.items()}
    assert (found["embed"], found["output"]) == ("F16", "Q4_K")
    assert (found["layers.0.q"], found["layers.1.q"], found["layers.1.down"]) == ("Q4_K", "Q5_0", "Q6_K")


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_configuration(tmp_path, arch, tied):
    dims = make_gguf(
        tmp_path / "model.gguf", arch=arch, tied=tied, rope_theta=5e5, max_position=777, head_dim=32
    )
    config = open_model(tmp_path / "model.gguf").config
    assert config.architecture == arch
    assert config.rope_interleaved is (arch == "llama")
    assert config.attention_bias is (arch == "qwen2")
    assert config.qk_norm is (arch == "qwen3")
    assert config.tied_embeddings is tied
    assert (config.rope_theta, config.max_position, config.head_dim, config.group_size) == (5e5, 777, 32, 2)
    assert config.norm_epsilon == pytest.approx(1e-5)
    assert config.rope_scaling is None
    assert config.sliding_windows == ()
    assert expected_shapes(config) == tensor_shapes(dims)


def test_options_of_the_file_reach_the_configuration(tmp_path):
    options = {
        "rope_scaling": LLAMA3_SCALING,
        "attention_bias": True,
        "output_bias": True,
    }
    dims = make_gguf(tmp_path / "model.gguf", **options)
    model = open_model(tmp_path / "model.gguf")
    assert model.config.attention_bias
    assert model.config.output_bias
    np.testing.assert_allclose(model.config.rope_scaling.factors, llama3_factors(dims), rtol=1e-6)
    assert "rope_factors" not in model.tensors
    assert model.tensors["layers.1.o_bias"].shape == (256,)


def test_metadata_is_decoded_when_asked_for(tmp_path):
    dims = make_gguf(tmp_path / "model.gguf", arch="qwen2")
    metadata, tokenizer = open_model(tmp_path / "model.gguf").metadata, tiny_tokenizer()
    tokens = metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == dims.vocab_size
    assert tuple(tokens[: len(tokenizer.tokens)]) == tokenizer.tokens
    assert tuple(metadata["tokenizer.ggml.merges"]) == tokenizer.merges
    assert metadata["tokenizer.ggml.token_type"].tolist().count(gguf.TokenType.CONTROL) == 3
    assert metadata["tokenizer.ggml.eos_token_id"] == tokenizer.id("<|im_end|>")
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert metadata["tokenizer.chat_template"] == CHAT_TEMPLATE
    assert metadata["general.name"] == "tiny-qwen2"
    assert "tokenizer.ggml.scores" not in metadata
    assert "general.architecture" in set(metadata)
    assert len(metadata) == len(list(metadata))


def test_release_keeps_the_weights_readable(tmp_path):
    make_gguf(tmp_path / "model.gguf", **SMALL)
    model = open_model(tmp_path / "model.gguf")
    before = model.tensors["embed"].data.tobytes()
    model.release()
    assert model.tensors["embed"].data.tobytes() == before
    assert model.nbytes == sum(tensor.nbytes for tensor in model.tensors.values())


def write(path, arch="llama", change=None, drop=(), extra=None, **fields):
    """A small file with some metadata replaced, tensors dropped, reshaped or added."""
    dims = tiny_dims("llama" if arch not in ("qwen2", "qwen3") else arch, **SMALL)
    values = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-5,
    } | fields
    writer = gguf.GGUFWriter(path, arch)
    for key, value in values.items():
        key = (
            key if "." in key and key.split(".")[0] in ("split", "general", "tokenizer") else f"{arch}.{key}"
        )
        if value is None:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    tensors = {gguf_name(name): weight for name, weight in random_weights(dims).items() if name not in drop}
    for name, weight in (tensors | (change or {}) | (extra or {})).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_values_equal_in_all_layers_are_accepted(tmp_path):
    path = write(tmp_path / "model.gguf", **{"feed_forward_length": [64], "attention.head_count_kv": [1]})
    assert open_model(path).config.num_kv_heads == 1


MISFITS = {
    "architecture": (
        {"arch": "starcoder2"},
        r"'starcoder2' is not supported; supported: llama, qwen2, qwen3, gemma2, .*",
    ),
    "foreign architecture": ({"arch": "gpt2"}, r"architecture 'gpt2' is not supported"),
    "missing field": ({"embedding_length": None}, r"llama\.embedding_length is missing, expected an integer"),
    "field of another type": ({"block_count": "two"}, r"llama\.block_count is 'two'"),
    "missing epsilon": ({"attention.layer_norm_rms_epsilon": None}, r"layer_norm_rms_epsilon is missing"),
    "more layers than there are": (
        {"block_count": 2},
        r"tensor layers\.1\.attn_norm and \d+ more is missing",
    ),
    "absurdly many layers": ({"block_count": 2_000_000_000}, r"block_count is 2000000000, expected 1 to"),
    "fewer layers than there are": ({"block_count": 0}, "block_count is 0"),
    "heads": ({"attention.head_count": 3, "attention.key_length": 16}, "3 attention heads|has shape"),
    "no heads": ({"attention.head_count": 0}, "head_count is 0"),
    "heads not a multiple": (
        {"attention.head_count": 3, "attention.head_count_kv": 2, "attention.key_length": 16},
        "3 attention heads are not a multiple of 2",
    ),
    "odd head": ({"attention.key_length": 15, "attention.value_length": 15}, "head size 15 is odd"),
    "hidden size": (
        {"embedding_length": 64, "attention.key_length": 16},
        r"has shape \(320, 32\).*asks for \(320, 64\)",
    ),
    "value length": ({"attention.value_length": 8}, r"attention\.value_length is 8, but heads have 16"),
    "partial rotation": ({"rope.dimension_count": 8}, r"rope\.dimension_count is 8, but heads have 16"),
    "layers that differ": ({"attention.head_count_kv": [1, 2]}, "head_count_kv differs between layers"),
    "epsilon": ({"attention.layer_norm_rms_epsilon": -1.0}, "norm_epsilon is -1"),
    "rope base": ({"rope.freq_base": 0.0}, "rope_theta is 0"),
    "vocabulary": ({"vocab_size": 319}, r"vocab_size is 319, but token_embd\.weight has 320 rows"),
    "tokens": ({"tokenizer.ggml.tokens": [str(i) for i in range(321)]}, "321 tokens, but .* only 320 rows"),
    "longrope": ({"rope.scaling.type": "longrope"}, "LongRoPE needs the tensors rope_factors_long"),
    "yarn without a factor": ({"rope.scaling.type": "yarn"}, r"rope\.scaling\.factor is missing"),
    "yarn of another kind": (
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.yarn_ext_factor": 0.5},
        r"yarn_ext_factor = 0\.5 is not supported",
    ),
    "yarn and factors": (
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 2.0,
            "extra": {"rope_freqs.weight": np.ones(8, "f4")},
        },
        "YaRN together with a tensor of RoPE factors",
    ),
    "attention factor": (
        {"rope.scaling.attn_factor": 1.5},
        r"attn_factor is 1\.5, expected 1\.0 without YaRN",
    ),
    "experts": ({"expert_count": 8}, "expert_count = 8 is not supported"),
    "softcap": ({"final_logit_softcapping": 30.0}, r"softcapping = 30\.0 is not supported"),
    "list where a number belongs": ({"logit_scale": [1, 2]}, "logit_scale = .* is not supported"),
    "split": ({"split.count": 3}, "the first of 3 parts .* must end with -00001-of-00003.gguf"),
    "later part": ({"split.count": 3, "split.no": 2}, "part 3 of 3 .*; pass the first part"),
    "split in words": ({"split.count": "two"}, r"split\.count is 'two'"),
    "adapter": ({"general.type": "adapter"}, "an adapter .LoRA., not a model"),
    "projector": ({"general.type": "mmproj"}, "the image or audio encoder of a model"),
    "projector by its architecture": ({"arch": "clip"}, "the image or audio encoder of a model"),
    "importance matrix": ({"general.type": "imatrix"}, "an importance matrix for quantising"),
    "another type of file": ({"general.type": "vocab"}, "a file of type 'vocab', not a model"),
    "rope alpha": ({"rope.scaling.alpha": 2.0}, r"llama\.rope\.scaling\.alpha = 2\.0 is not supported"),
    "temperature": ({"attention.temperature_scale": 0.1}, r"attention\.temperature_scale = 0\.1"),
    "dense blocks": ({"leading_dense_block_count": 1}, "leading_dense_block_count = 1 is not supported"),
    "predicted layers": ({"nextn_predict_layers": 1}, "nextn_predict_layers = 1 is not supported"),
    "key newer than this program": ({"attention.whirl": 1.5}, r"attention\.whirl = 1\.5 is not supported"),
    "windows by layer": ({"rope.freq_base_swa": 5.0}, r"rope\.freq_base_swa = 5\.0 is not supported"),
    "huge width": (
        {"feed_forward_length": 2**32 - 1},
        "intermediate_size is 4294967295, which must be at most",
    ),
    "missing embedding": ({"drop": ["embed"]}, "tensor embed is missing"),
    "missing norm": ({"drop": ["final_norm"]}, "tensor final_norm is missing"),
    "missing matrix": ({"drop": ["layers.0.up"]}, r"tensor layers\.0\.up is missing"),
    "missing biases": (
        {"arch": "qwen2", "drop": ["layers.0.q_bias"]},
        r"tensor layers\.0\.q_bias is missing",
    ),
    "missing head norms": ({"arch": "qwen3", "drop": ["layers.0.k_norm"]}, r"layers\.0\.k_norm is missing"),
    "unknown tensor": ({"extra": {"blk.0.ffn_gate_exps.weight": np.zeros((2, 2), "f4")}}, "ffn_gate_exps"),
    "unknown top tensor": ({"extra": {"output.bias": np.zeros(320, "f4")}}, r"tensor output\.bias"),
    "tensor of a layer too many": (
        {"extra": {"blk.1.ffn_up.weight": np.zeros((64, 32), "f4")}},
        "has no place",
    ),
    "head norms in a llama": ({"extra": {"blk.0.attn_q_norm.weight": np.zeros(16, "f4")}}, "has no place"),
    "transposed": ({"change": {"blk.0.ffn_up.weight": np.zeros((32, 64), "f4")}}, r"has shape \(32, 64\)"),
    "integers": (
        {"change": {"blk.0.ffn_up.weight": np.zeros((64, 32), "i4")}},
        r"tensor blk\.0\.ffn_up\.weight has type I32; supported: F32, F16",
    ),
    "rope factors": (
        {"extra": {"rope_freqs.weight": np.ones(5, "f4")}},
        "5 RoPE factors for heads of 16, expected 8",
    ),
    "rope factor 0": ({"extra": {"rope_freqs.weight": np.zeros(8, "f4")}}, "RoPE factors must be positive"),
    "rope matrix": (
        {"extra": {"rope_freqs.weight": np.ones((8, 2), "f4")}},
        r"shape \(8, 2\), expected a vector",
    ),
}


@pytest.mark.parametrize(
    ("fields", "factors"),
    [
        ({"rope.scaling.factor": 4.0}, (4.0,) * 8),  # linear where no type is given, as in llama.cpp
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, (4.0,) * 8),
        ({"rope.scale_linear": 2.0}, (2.0,) * 8),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}, None),
        ({"rope.scaling.type": "linear"}, None),
        (
            {"rope.scaling.factor": 2.0, "extra": {"rope_freqs.weight": np.arange(1, 9, dtype="f4")}},
            (2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0),
        ),
    ],
)
def test_linear_scaling_of_rope(tmp_path, fields, factors):
    scaling = open_model(write(tmp_path / "model.gguf", **fields)).config.rope_scaling
    assert (scaling.factors if scaling else None) == factors


@pytest.mark.parametrize(
    "extra", [{}, {"rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0}]
)
def test_yarn_is_that_of_a_directory(tmp_path, extra):
    """llama.cpp and transformers define it alike; transformers is compared with elsewhere."""
    keys = {"type": "yarn", "factor": 4.0, "original_context_length": 32}
    fields = {f"rope.scaling.{key}": value for key, value in keys.items()} | extra
    scaling = open_model(write(tmp_path / "model.gguf", **fields)).config.rope_scaling
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    yarn |= {key.removeprefix("rope.scaling.yarn_"): value for key, value in extra.items()}
    make_hf_dir(tmp_path / "model", rope_scaling=yarn, **SMALL)
    expected = open_model(tmp_path / "model").config.rope_scaling
    assert scaling.factors == pytest.approx(expected.factors)
    assert scaling.attention_factor == pytest.approx(expected.attention_factor)
    assert min(scaling.factors) == 1
    assert max(scaling.factors) == pytest.approx(4)


def test_keys_that_change_nothing_are_accepted_silently(tmp_path, caplog):
    open_model(
        write(
            tmp_path / "model.gguf",
            **{
                "logit_scale": 1.0,
                "expert_count": 0,
                "expert_used_count": 2,
                "attention.causal": True,
                "attention.sliding_window": 0,
                "rope.scaling.finetuned": False,
                "rope.scaling.original_context_length": 2048,
                "pooling_type": 3,
                "tensor_data_layout": "Meta AI original pth",
                "nextn_predict_layers": 0,
                "general.type": "model",
            },
        )
    )
    assert not caplog.records


def test_a_key_that_nobody_knows_is_named_once(tmp_path, caplog):
    open_model(write(tmp_path / "model.gguf", **{"shop.colour": "red"}))
    (record,) = caplog.records
    assert "model.gguf: llama.shop.colour = 'red' is not known" in record.getMessage()


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("pattern", [None, [True]])
def test_a_sliding_window_has_no_effect_in_these_architectures(tmp_path, caplog, arch, pattern):
    """As in llama.cpp, which reads the key only where the architecture has windows."""
    fields = {"attention.sliding_window": 7} | (
        {"attention.sliding_window_pattern": pattern} if pattern else {}
    )
    config = open_model(write(tmp_path / "model.gguf", arch, **fields)).config
    assert config.sliding_windows == ()
    assert f"{arch}.attention.sliding_window = 7 has no effect" in caplog.text


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_refused_with_the_reason(tmp_path, case):
    changes, match = MISFITS[case]
    path = write(tmp_path / "model.gguf", **changes)
    with pytest.raises(ModelError, match=match) as caught:
        open_model(path)
    assert str(path) in str(caught.value)


def test_quantised_vectors_are_refused(tmp_path):
    path = tmp_path / "model.gguf"
    make_gguf(path, **SMALL)
    data = bytearray(path.read_bytes())
    at = data.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8
    assert data[at : at + 4] == bytes(4)
    data[at] = gguf.GGMLQuantizationType.Q8_0
    path.write_bytes(data)
    with pytest.raises(
        ModelError, match=r"output_norm\.weight is a vector of type Q8_0; supported for vectors: F32"
    ):
        open_model(path)


@pytest.mark.parametrize("kind", ["Q8_1", "Q8_K", "I8", "F64"])
def test_unsupported_types_are_named(tmp_path, kind):
    make_gguf(tmp_path / "model.gguf", num_layers=1)
    data = bytearray((tmp_path / "model.gguf").read_bytes())
    at = data.index(b"blk.0.ffn_up.weight") + len("blk.0.ffn_up.weight") + 4 + 16
    data[at] = gguf.GGMLQuantizationType[kind]
    (tmp_path / "model.gguf").write_bytes(data)
    expected = rf"tensor blk\.0\.ffn_up\.weight has type {kind}; supported: F32, .*, MXFP4, .*, IQ1_S, .*llama-quantize"
    with pytest.raises(ModelError, match=expected):
        open_model(tmp_path / "model.gguf")


def write_split(folder, counts=(4, 5, 3), change=None):
    """One file, cut as llama.cpp cuts it: metadata in the first part, tensors in all of them."""
    whole = folder / "whole.gguf"
    make_gguf(whole, "qwen2", types="Q8_0", **SMALL)
    reader = gguf.GGUFReader(whole)
    count = len(counts)
    paths = [folder / f"model-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    begin = 0
    for i, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "qwen2")
        if i:
            writer.kv_data[0].clear()
        else:
            for key, field in reader.fields.items():
                if key.startswith("GGUF.") or key == "general.architecture":
                    continue
                kind = field.types[0]
                inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(key, field.contents(), kind, sub_type=inner)
        values = {"split.no": i, "split.count": count, "split.tensors.count": len(reader.tensors)}
        for key, value in (values | (change or {}).get(i, {})).items():
            writer.add_uint16(key, value)
        end = len(reader.tensors) if i == count - 1 else begin + counts[i]
        for tensor in reader.tensors[begin:end]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        begin = end
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return whole, paths


def test_the_first_part_of_a_split_file_opens_all(tmp_path):
    whole, paths = write_split(tmp_path)
    expected, model = open_model(whole), open_model(paths[0])
    assert model.config == expected.config
    assert model.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert model.tensors[name].data.tobytes() == tensor.data.tobytes()
        assert model.tensors[name].dtype == tensor.dtype
    assert model.nbytes == expected.nbytes
    model.release()
    assert Tokenizer.from_model(model).fingerprint() == Tokenizer.from_model(expected).fingerprint()


def test_split_files_that_do_not_belong_together(tmp_path):
    _, paths = write_split(tmp_path)
    with pytest.raises(ModelError, match=r"00002-of-00003.gguf: part 2 of 3 .*; pass the first part"):
        open_model(paths[1])
    paths[2].rename(tmp_path / "elsewhere")
    with pytest.raises(
        ModelError, match=r"model-00003-of-00003\.gguf is missing: .* is the first of 3 parts"
    ):
        open_model(paths[0])
    (tmp_path / "elsewhere").rename(paths[2])
    paths[2].write_bytes(paths[2].read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model-00003-of-00003\.gguf: truncated"):
        open_model(paths[0])
    for change, match in (
        ({1: {"split.no": 2}}, "does not say that it is part 2 of 3"),
        ({0: {"split.tensors.count": 99}}, "has 99 tensors in all, but its parts have"),
    ):
        _, paths = write_split(tmp_path, change=change)
        with pytest.raises(ModelError, match=match):
            open_model(paths[0])
