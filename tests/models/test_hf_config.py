import json

import numpy as np
import pytest

from sonoran.errors import ModelError
from sonoran.models.hf_config import read_hf_config
from sonoran.models.tensors import check_config
from tests.tiny_models import LLAMA3_SCALING, hf_config, tiny_dims


def read(tmp_path, base, drop=(), **changes):
    config = {key: value for key, value in base.items() if key not in drop} | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    return read_hf_config(tmp_path / "config.json")


def base(arch="llama", **dims):
    return hf_config(tiny_dims(arch, **dims))


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("by_class", [True, False])
def test_architectures(tmp_path, arch, by_class):
    config = read(tmp_path, base(arch), drop=() if by_class else ("architectures",))
    assert config.architecture == arch
    assert not config.rope_interleaved
    assert config.attention_bias is (arch == "qwen2")
    assert not config.output_bias
    assert config.qk_norm is (arch == "qwen3")


def test_defaults_of_missing_or_null_keys(tmp_path):
    missing = ("num_key_value_heads", "rope_theta", "rope_scaling", "tie_word_embeddings", "attention_bias")
    for config in (
        read(tmp_path, base(), drop=(*missing, "head_dim")),
        read(tmp_path, base(), **dict.fromkeys((*missing, "head_dim"))),
    ):
        assert (config.num_kv_heads, config.head_dim, config.rope_theta) == (4, 64, 10000.0)
        assert not config.tied_embeddings
        assert config.rope_scaling is None
    assert read(tmp_path, base("qwen3"), drop=("head_dim",)).head_dim == 128


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_attention_bias_covers_the_output_projection(tmp_path, arch):
    config = read(tmp_path, base(arch), attention_bias=True)
    assert config.attention_bias
    assert config.output_bias


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize(("theta", "head_dim", "original"), [(10000.0, 64, 64), (500000.0, 128, 8192)])
def test_llama3_scaling_is_that_of_transformers(tmp_path, newer, theta, head_dim, original):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = LLAMA3_SCALING | {"original_max_position_embeddings": original, "factor": 32.0}
    dims = tiny_dims("llama", head_dim=head_dim, rope_theta=theta, rope_scaling=scaling)
    (tmp_path / "config.json").write_text(json.dumps(hf_config(dims, rope_parameters=newer)))
    config = read_hf_config(tmp_path / "config.json")
    assert config.rope_theta == theta
    frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim) / config.rope_scaling.factors
    theirs, attention_factor = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig.from_pretrained(tmp_path), "cpu")
    assert attention_factor == 1.0
    np.testing.assert_allclose(frequencies, theirs.numpy(), rtol=1e-5)
    assert config.rope_scaling.factors[0] == 1.0
    assert config.rope_scaling.factors[-1] == 32.0


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"factor": 1.0},
        {"original_max_position_embeddings": 16},
        {"beta_fast": 16.0, "beta_slow": 3.0},
        {"attention_factor": 0.8},
        {"mscale": 0.7, "mscale_all_dim": 1.3},
        {"truncate": False},
        {"truncate": False, "beta_fast": 2.0, "beta_slow": 2.0},
    ],
)
@pytest.mark.parametrize(("theta", "head_dim"), [(10000.0, 64), (1e6, 128)])
def test_yarn_is_that_of_transformers(tmp_path, theta, head_dim, changes):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    dims = tiny_dims("llama", head_dim=head_dim, rope_theta=theta, rope_scaling=YARN | changes)
    (tmp_path / "config.json").write_text(json.dumps(hf_config(dims)))
    scaling = read_hf_config(tmp_path / "config.json").rope_scaling
    frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim) / scaling.factors
    theirs, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](LlamaConfig.from_pretrained(tmp_path), "cpu")
    np.testing.assert_allclose(frequencies, theirs.numpy(), rtol=1e-5)
    assert scaling.attention_factor == pytest.approx(attention_factor, rel=1e-6)


def test_yarn_extends_the_context(tmp_path):
    short = {"rope_type": "yarn", "factor": 4.0}
    assert read(tmp_path, base(max_position=64), rope_scaling=short).max_position == 256
    long = short | {"original_max_position_embeddings": 64}
    assert read(tmp_path, base(max_position=256), rope_scaling=long).max_position == 256
    outside = read(tmp_path, base(max_position=256), rope_scaling=short, original_max_position_embeddings=64)
    assert outside == read(tmp_path, base(max_position=256), rope_scaling=long)


def test_older_spelling_of_the_rope_type(tmp_path):
    assert read(tmp_path, base(), rope_scaling={"type": "default"}).rope_scaling is None
    assert read(tmp_path, base(), rope_scaling={"type": "linear", "factor": 1.0}).rope_scaling is None
    scaling = read(tmp_path, base(), rope_scaling={"type": "linear", "factor": 2.5}).rope_scaling
    assert scaling.factors == (2.5,) * 32


MIXED = {"sliding_window": 99, "use_sliding_window": True, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("arch", "changes", "window"),
    [
        ("mistral", {"sliding_window": 4096}, 4096),
        ("mistral", {"sliding_window": None}, None),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": False}, None),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 2}, None),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 1}, (None, 4096)),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 0}, 4096),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": True}, None),
        ("qwen2", {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 0}, None),
        ("qwen3", MIXED | {"layer_types": ["sliding_attention", "full_attention"]}, (99, None)),
        ("qwen3", MIXED | {"layer_types": ["full_attention", "full_attention"]}, None),
        ("qwen3", MIXED | {"layer_types": None, "sliding_window_pattern": 2}, (None, 99)),
        ("mistral", {"sliding_window": 99, "layer_types": ["sliding_attention"] * 2}, 99),
        ("llama", {"sliding_window": 4096}, None),
    ],
)
def test_sliding_window_of_each_layer(tmp_path, arch, changes, window):
    expected = window if isinstance(window, tuple) else (window, window) if window else ()
    config = read(tmp_path, base(arch), **changes)
    assert config.sliding_windows == expected
    assert [config.window(layer) for layer in range(2)] == list(expected or (None, None))


@pytest.mark.parametrize(
    ("arch", "changes", "match"),
    [
        ("qwen3", MIXED | {"layer_types": ["full_attention"]}, "expected one of .* for each of 2 layers"),
        ("qwen3", MIXED | {"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ("qwen3", MIXED | {"layer_types": [{}, 1]}, "layer_types is"),
        (
            "qwen3",
            MIXED | {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": False},
            "switched off",
        ),
        ("mistral", {"sliding_window": 9, "layer_types": ["full_attention", "sliding_attention"]}, "Mistral"),
        ("mistral", {"sliding_window": 2**31}, "sliding window is 2147483648"),
        ("mistral", {"sliding_window": 0}, "sliding window is 0"),
    ],
)
def test_windows_that_make_no_sense_are_refused(tmp_path, arch, changes, match):
    with pytest.raises(ModelError, match=match):
        check_config("here", read(tmp_path, base(arch), **changes))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4"},
            r"'Gemma4ForCausalLM' is not supported \(Gemma 4: per-layer .*\); supported: LlamaForCausalLM, .*",
        ),
        ({"architectures": ["GemmaForCausalLM"]}, "'GemmaForCausalLM' is not supported"),
        ({"architectures": None, "model_type": "gpt2"}, "model_type 'gpt2' is not supported"),
        ({"hidden_size": None}, "hidden_size is missing, expected an integer"),
        ({"hidden_size": "256"}, "hidden_size is '256', expected an integer"),
        ({"hidden_size": 256.5}, r"hidden_size is 256\.5"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"rms_norm_eps": None}, "rms_norm_eps is missing, expected a number"),
        ({"attention_bias": "no"}, "attention_bias is 'no', expected true or false"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ({"mlp_bias": True}, "mlp_bias is not supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by 'gptq' are not supported"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor is 0\.5"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            r"partial_rotary_factor is 0\.5",
        ),
        (
            {"rope_scaling": {"rope_type": "longrope", "factor": 4.0}},
            "short_factor is missing, expected a list of numbers",
        ),
        ({"rope_scaling": {"rope_type": "dynamic", "alpha": 1000.0}}, "'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": "proportional"}}, "supported: 'default', 'dynamic', 'linear',"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5.0}}},
            "rope_parameters of its own for 'full_attention' is not supported",
        ),
        ({"rope_scaling": "llama3"}, "rope_scaling is 'llama3', expected an object"),
        (
            {"rope_scaling": {"rope_type": "llama3"}},
            "config.json: rope_scaling: factor is missing, expected a number",
        ),
        ({"rope_scaling": LLAMA3_SCALING | {"factor": -1}}, "factor is -1"),
        (
            {"rope_scaling": LLAMA3_SCALING | {"low_freq_factor": 5.0}},
            r"high_freq_factor is 4\.0, expected more than low",
        ),
        ({"rope_theta": 10**400}, "rope_theta is an integer of 1329 bits, expected a number"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is an integer of 1329 bits"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"head_dim": 2**31 - 2, "rope_scaling": LLAMA3_SCALING}, "head_dim is 2147483646, expected 1 to"),
        ({"num_hidden_layers": 10**15}, "num_hidden_layers is 1000000000000000, expected 1 to"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_theta": 0}, r"rope_theta is 0\.0, expected a positive number"),
        ({"sliding_window": "wide", "architectures": ["MistralForCausalLM"]}, "sliding_window is 'wide'"),
    ],
)
def test_what_the_decoder_has_not_is_refused(tmp_path, changes, match):
    with pytest.raises(ModelError, match=match) as caught:
        read(tmp_path, base(), **changes)
    assert "config.json" in str(caught.value)


def test_damaged_json(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(ModelError, match="cannot be read"):
        read_hf_config(path)
    for content, match in (
        ("", "not valid JSON"),
        ('{"hidden_size": 1', "not valid JSON"),
        ("[1]", "holds list"),
        ("[" * 100_000, "nested too deeply"),
        ('{"hidden_size": ' + "[" * 100_000, "nested too deeply"),
    ):
        path.write_text(content)
        with pytest.raises(ModelError, match=match):
            read_hf_config(path)
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(ModelError, match="not UTF-8 text"):
        read_hf_config(path)


def test_defaults_that_differ_between_architectures(tmp_path):
    assert read(tmp_path, base("mistral"), drop=("sliding_window",)).sliding_windows == (4096, 4096)
    for arch in ("mistral", "qwen2", "qwen3"):
        with pytest.raises(ModelError, match="num_key_value_heads is missing"):
            read(tmp_path, base(arch), drop=("num_key_value_heads",))
        assert read(tmp_path, base(arch), num_key_value_heads=None).num_kv_heads == 4
