"""The files of a model, damaged."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from sonoran.llm import LLM
from sonoran.models.opening import open_with_tokenizer
from sonoran.sampling.params import SamplingParams
from tests.fuzzing import Mutate, damage, mutated_bytes, mutated_json
from tests.tiny_models import gguf_name, make_gguf, make_hf_dir, random_weights, tiny_dims

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "num_kv_heads": 1, "num_layers": 1}


def mutated_safetensors(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file: header replaced, or bytes changed."""
    length = int.from_bytes(data[:8], "little")
    if rng.random() < 0.4:
        return mutated_bytes(rng, data, 8 + length)
    header = mutated_json(rng, data[8 : 8 + length])
    size = len(header) if rng.random() < 0.9 else rng.choice((0, 2**40, 2**64 - 1))
    return size.to_bytes(8, "little") + header + data[8 + length :]


GGUF_VALUES: tuple[Any, ...] = (
    0, 1, 2**31, 2**32 - 1, True, False, -1.0, 0.0, float("nan"), float("inf"), 1e30, "", "llama", "é" * 500, "\x1b[31m",
    [1, 2], [1.5], ["a", "b"], [True], [1] * 320, ["x"] * 320,
)  # fmt: skip


def mutated_gguf(rng: random.Random, data: bytes, path: Path) -> bytes:
    """A GGUF file: header bytes changed, or metadata with other values."""
    if rng.random() < 0.5:
        header = data.index(b"blk.0.ffn_down.weight") + 60
        begin = 0 if rng.random() < 0.5 else data.index(b"token_embd.weight") - 60
        return data[:begin] + mutated_bytes(rng, data[begin:], header - begin)
    reader = gguf.GGUFReader(path)
    values = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    extra = ("rope.scaling.type", "rope.scaling.factor", "attention.sliding_window", "expert_count", "whirl")
    for _ in range(rng.randint(1, 3)):
        key = rng.choice(
            [*values, *(f"llama.{name}" for name in extra), "tokenizer.ggml.scores", "general.type"]
        )
        if rng.random() < 0.2:
            values.pop(key, None)
        elif key != "general.alignment":
            values[key] = rng.choice(GGUF_VALUES)
    target = path.with_suffix(".new")
    writer = gguf.GGUFWriter(target, "none")
    writer.kv_data[0].clear()
    for key, value in values.items():
        add_value(writer, key, value)
    for name, weight in random_weights(tiny_dims("llama", **SMALL)).items():
        writer.add_tensor(gguf_name(name), weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target.read_bytes()


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value) if 0 <= value < 2**32 else writer.add_int64(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_key_value(key, value, gguf.GGUFValueType.STRING)
    elif len(value):
        writer.add_array(key, value)


JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
INDEX = "model.safetensors.index.json"
SHARD = "model-00001-of-00002.safetensors"
KINDS = (*JSON_FILES, "chat_template.jinja", INDEX, SHARD, "model.gguf")


def mutator(kind: str) -> Mutate:
    if kind.endswith(".gguf"):
        return mutated_gguf
    if kind.endswith(".jinja"):
        return lambda rng, data, path: mutated_bytes(rng, data)
    if kind.endswith(".safetensors"):
        return lambda rng, data, path: mutated_safetensors(rng, data)
    return lambda rng, data, path: mutated_json(rng, data)


def use(model: Path) -> None:
    """Open a model as every command does, and use what came from its files."""
    opened = open_with_tokenizer(model)
    tokenizer = opened.tokenizer
    ids = tokenizer.encode("hello wörld <|im_end|>")
    tokenizer.decode(ids)
    tokenizer.decode(range(0, tokenizer.vocab_size, 7))
    tokenizer.fingerprint()
    if tokenizer.has_chat_template:
        tokenizer.encode_chat([{"role": "user", "content": "a<|im_end|>"}])
    for tensor in opened.file.tensors.values():
        assert np.asarray(tensor.data).nbytes == tensor.nbytes


TYPES = ("F32", "BF16", "Q8_0", "Q4_0", "Q5_K", "Q4_K", "Q6_K")


def attack_running(folder: Path, kind: str, count: int, seed: int = 0) -> int:
    """Damage a GGUF file of one type of weights anywhere, and generate with what still opens; return the refused."""
    model = folder / "model.gguf"
    make_gguf(model, types=kind, **{**SMALL, "hidden_size": 256, "intermediate_size": 256})

    def mutate(rng: random.Random, data: bytes, path: Path) -> bytes:
        if rng.random() < 0.5:
            damaged = bytearray(data)
            for _ in range(rng.choice((1, 10, 1000))):
                at = rng.randrange(len(data) // 2, len(data) - 8)  # the weights of the layer
                damaged[at : at + 8] = rng.choice((rng.randbytes(8), b"\xff" * 8, b"\x00" * 8))
            return bytes(damaged)
        begin = data.index(b"token_embd.weight") - 60 if rng.random() < 0.7 else 0
        return data[:begin] + mutated_bytes(rng, data[begin:], 1000)

    return damage(model, mutate, lambda: run(model), count, "", seed=f"{kind}{seed}")


def run(model: Path) -> None:
    """Generate a few tokens. What a model cannot do is no ModelError that names the file, but one line as well."""
    with LLM(model, threads=1, num_kv_blocks=8, max_num_seqs=2) as llm:
        llm.generate([[1, 2, 3], [5]], SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True))


def attack(folder: Path, kind: str, count: int, seed: int = 0) -> int:
    """Damage one kind of file ``count`` times; return how many were refused. See ``damage``."""
    if kind == "model.gguf":
        model = folder / kind
        make_gguf(model, **SMALL)
        file = model
    else:
        model = folder / "model"
        make_hf_dir(model, "qwen2", shards=2, **SMALL)
        (model / "generation_config.json").write_text(
            json.dumps({"eos_token_id": [1, 2], "temperature": 0.7})
        )
        (model / "chat_template.jinja").write_text(
            "{% for m in messages %}{{ '<|im_start|>' + m.role ~ m.content | trim }}{% endfor %}"
        )
        file = model / kind
    named = str(model), "chat template"  # which fails on what it is given, wherever it was read
    return damage(file, mutator(kind), lambda: use(model), count, *named, seed=f"{kind}{seed}")
