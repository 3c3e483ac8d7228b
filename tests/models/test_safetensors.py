"""Model directories: whole ones, and ones broken in the ways a download can break them."""

import json

import numpy as np
import pytest

from sonoran.errors import ModelError
from sonoran.models.source import open_model
from sonoran.models.tensors import dequantize, expected_shapes
from tests.tiny_models import hf_name, make_hf_dir, random_weights, tensor_shapes, write_safetensors

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "num_kv_heads": 1, "num_layers": 2}


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(("dtype", "kind", "tolerance"), [("float32", "F32", 0), ("float16", "F16", 1e-3)])
def test_values_are_those_that_were_written(tmp_path, arch, dtype, kind, tolerance):
    dims = make_hf_dir(tmp_path / "model", arch=arch, dtype=dtype, seed=5, **SMALL)
    model = open_model(tmp_path / "model")
    assert (model.format, model.directory, dict(model.metadata)) == ("safetensors", tmp_path / "model", {})
    assert expected_shapes(model.config) == tensor_shapes(dims)
    weights = random_weights(dims, seed=5)
    assert model.tensors.keys() == weights.keys()
    for name, weight in weights.items():
        tensor = model.tensors[name]
        assert (tensor.dtype, tensor.shape, tensor.source) == (kind, weight.shape, hf_name(name))
        assert tensor.data.dtype == np.uint8
        assert not tensor.data.flags.writeable
        np.testing.assert_allclose(dequantize(tensor), weight, rtol=tolerance, atol=tolerance / 10)


def test_bfloat16_is_kept_to_the_bit(tmp_path):
    dims = make_hf_dir(tmp_path / "model", dtype="bfloat16", **SMALL)
    model = open_model(tmp_path / "model")
    for name, weight in random_weights(dims).items():
        tensor = model.tensors[name]
        assert tensor.dtype == "BF16"
        values = dequantize(tensor)
        assert (values.view(np.uint32) & 0xFFFF == 0).all()
        np.testing.assert_allclose(values, weight, rtol=2**-8)


@pytest.mark.parametrize("shards", [2, 5])
def test_shards_hold_the_same_model(tmp_path, shards):
    make_hf_dir(tmp_path / "one", **SMALL)
    make_hf_dir(tmp_path / "many", shards=shards, **SMALL)
    one, many = open_model(tmp_path / "one"), open_model(tmp_path / "many")
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) == shards
    assert one.tensors.keys() == many.tensors.keys()
    assert all(one.tensors[name].data.tobytes() == many.tensors[name].data.tobytes() for name in one.tensors)
    many.release()


def rewrite(directory, change):
    """Change the tensors of a directory: ``change`` gets a mapping from names to arrays."""
    dims = make_hf_dir(directory, **SMALL)
    tensors = {hf_name(name): weight for name, weight in random_weights(dims).items()}
    change(tensors)
    write_safetensors(directory / "model.safetensors", tensors)
    return directory


UP = "model.layers.1.mlp.up_proj.weight"
MISFITS = {
    "missing": (lambda t: t.pop(UP), r"tensor layers\.1\.up is missing"),
    "several missing": (lambda t: [t.pop(UP), t.pop("lm_head.weight")], "output and 1 more is missing"),
    "transposed": (
        lambda t: t.update({UP: t[UP].T.copy()}),
        rf"{UP} has shape \(32, 64\).* asks for \(64, 32\)",
    ),
    "integers": (
        lambda t: t.update({UP: t[UP].astype("i8")}),
        f"{UP} has type I64; supported: F32, F16, BF16",
    ),
    "scalar": (lambda t: t.update({UP: np.float32(1).reshape(())}), r"shape \(\)"),
    "unknown": (lambda t: t.update({"model.layers.0.mlp.gate.bias": t[UP]}), "mlp.gate.bias is not one that"),
    "unknown top": (lambda t: t.update({"lm_head.bias": t[UP]}), "lm_head.bias is not one that"),
    "layer too many": (
        lambda t: t.update({"model.layers.2.mlp.up_proj.weight": t[UP]}),
        r"model\.layers\.2\.mlp\.up_proj\.weight \(layers\.2\.up\) has no place",
    ),
    "bias that the configuration denies": (
        lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": np.zeros(32, "f4")}),
        "has no place",
    ),
    "empty": (lambda t: t.clear(), "describes 2 layers, but holds only 0 tensors"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_refused_with_the_reason(tmp_path, case):
    change, match = MISFITS[case]
    directory = rewrite(tmp_path / "model", change)
    with pytest.raises(ModelError, match=match) as caught:
        open_model(directory)
    assert str(directory) in str(caught.value)


def test_frequencies_in_old_checkpoints_are_left_aside(tmp_path):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    directory = rewrite(tmp_path / "model", lambda tensors: tensors.update({name: np.ones(8, "f4")}))
    assert "layers.0.up" in open_model(directory).tensors


def test_a_copy_of_tied_embeddings_is_dropped_and_a_different_one_refused(tmp_path):
    dims = make_hf_dir(tmp_path / "model", tied=True, **SMALL)
    tensors = {hf_name(name): weight for name, weight in random_weights(dims).items()}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    write_safetensors(tmp_path / "model" / "model.safetensors", tensors)
    assert "output" not in open_model(tmp_path / "model").tensors
    tensors["lm_head.weight"][7, 7] += 1
    write_safetensors(tmp_path / "model" / "model.safetensors", tensors)
    with pytest.raises(ModelError, match=r"tie_word_embeddings is true, but lm_head\.weight differs"):
        open_model(tmp_path / "model")
    del tensors["model.embed_tokens.weight"]
    write_safetensors(tmp_path / "model" / "model.safetensors", tensors)
    with pytest.raises(ModelError, match="tensor embed is missing"):
        open_model(tmp_path / "model")


def damaged(directory, content):
    (directory / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"truncated or corrupt .*\d+ bytes") as caught:
        open_model(directory)
    assert str(directory / "model.safetensors") in str(caught.value)


def test_damaged_files(tmp_path):
    directory = tmp_path / "model"
    make_hf_dir(directory, **SMALL)
    content = (directory / "model.safetensors").read_bytes()
    header = int.from_bytes(content[:8], "little")
    rng = np.random.default_rng(0)
    places = {
        *range(12),
        *rng.integers(12, header, 40),
        *rng.integers(header, len(content), 20),
        len(content) - 1,
    }
    for place in places:
        damaged(directory, content[: int(place)])
    damaged(directory, content + b"\0")
    damaged(directory, bytes(len(content)))
    damaged(directory, b"\xff" * 64)
    damaged(directory, b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    damaged(directory, content[:header] + content[header + 512 :])


def test_flipped_header_bytes_are_refused_or_harmless(tmp_path):
    directory = tmp_path / "model"
    make_hf_dir(directory, **SMALL)
    content = (directory / "model.safetensors").read_bytes()
    rng = np.random.default_rng(2)
    refusals = 0
    for place in [*range(8), *rng.integers(8, int.from_bytes(content[:8], "little"), 300)]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(rng.integers(8))
        (directory / "model.safetensors").write_bytes(flipped)
        try:
            open_model(directory)
        except ModelError:
            refusals += 1
    assert refusals > 200


def edit_index(directory, change):
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def test_shards_and_index_must_agree(tmp_path):
    def fresh(name):
        make_hf_dir(tmp_path / name, shards=2, **SMALL)
        return tmp_path / name

    def refused(directory, match):
        with pytest.raises(ModelError, match=match):
            open_model(directory)

    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    directory = fresh("shard missing")
    (directory / second).unlink()
    refused(directory, rf"{second} is missing, model\.safetensors\.index\.json asks for it")
    directory = fresh("shard empty")
    (directory / second).write_bytes(b"")
    refused(directory, rf"{second}: truncated or corrupt .* 0 bytes")
    directory = fresh("foreign shard")
    (directory / second).write_bytes((directory / first).read_bytes())
    refused(directory, rf"{second}: tensor .* is missing, .* says that it is there")
    directory = fresh("index names another file")
    edit_index(directory, lambda weights: weights.update(dict.fromkeys(weights, "other.safetensors")))
    refused(directory, r"other\.safetensors is missing")
    directory = fresh("index names a file elsewhere")
    edit_index(directory, lambda weights: weights.update({UP: "../model-00001-of-00002.safetensors"}))
    refused(directory, r"names the file '\.\./model-00001")
    directory = fresh("tensor in the other shard")
    edit_index(directory, lambda weights: weights.update({UP: first if weights[UP] == second else second}))
    refused(directory, f"tensor {UP} is missing")
    directory = fresh("tensor not listed")
    edit_index(directory, lambda weights: weights.pop(UP))
    refused(directory, f"tensor {UP} is not listed")
    directory = fresh("index is not JSON")
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {')
    refused(directory, "not valid JSON")
    directory = fresh("index without map")
    (directory / "model.safetensors.index.json").write_text('{"weight_map": ["a"]}')
    refused(directory, "weight_map is missing or not a mapping")
    directory = fresh("nothing there")
    for path in directory.glob("*.safetensors*"):
        path.unlink()
    (directory / "pytorch_model.bin").touch()
    refused(directory, r"neither model\.safetensors nor .* is there; it has pytorch_model\.bin")
