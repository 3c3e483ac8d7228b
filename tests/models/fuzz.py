"""Model files damaged at random, and what must hold for each: it opens, or is refused in one line."""

from __future__ import annotations

import copy
import json
import random
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from sonoran.errors import SonoranError
from sonoran.models.opening import open_with_tokenizer
from tests.tiny_models import gguf_name, make_gguf, make_hf_dir, random_weights, tiny_dims

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "num_kv_heads": 1, "num_layers": 1}
LONGEST_MESSAGE = 1000
MEMORY = 600 << 20  # bytes that all attempts together may add to the process

NASTY: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 10**30, 10**400, 0.5, -0.0, 1e308, 1e-320,
    float("nan"), float("inf"), "", "x", "llama3", "\x00", "\ud83d", "é" * 3000, "[/red]\x1b[31m\n", "<|im_end|>",
    [], {}, [1], ["a"], [None], {"x": 1}, {"type": "ByteLevel"}, [[[]]], [{"name": 1}], {"content": None}, [1, "a", {}],
    "{{ x }}", "{% if %}", "[" * 300,
)  # fmt: skip


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of a nested value, long lists and mappings only in part."""
    yield at
    if isinstance(value, dict):
        for key in list(value)[:60]:
            yield from paths(value[key], (*at, key))
    elif isinstance(value, list):
        for i in range(min(len(value), 8)):
            yield from paths(value[i], (*at, i))


def mutated_value(rng: random.Random, value: Any) -> Any:
    """A JSON value with one to three places replaced, removed, renamed or repeated."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        places = [place for place in paths(value) if place]
        if not places:
            return rng.choice(NASTY)
        *parents, last = rng.choice(places)
        holder = value
        for key in parents:
            holder = holder[key]
        action = rng.random()
        if action < 0.6:
            holder[last] = copy.deepcopy(rng.choice(NASTY))
        elif action < 0.75:
            del holder[last]
        elif action < 0.85 and isinstance(holder, dict):
            holder[rng.choice(("x", "type", "id", "", "ä"))] = holder.pop(last)
        elif isinstance(holder, list):
            holder.extend(copy.deepcopy(holder[:50]))
        else:
            holder[last] = [holder[last]]
    return value


def mutated_bytes(rng: random.Random, data: bytes, end: int | None = None) -> bytes:
    """Bytes cut off, flipped, replaced by extreme numbers, repeated or removed, all before ``end``."""
    end = len(data) if end is None else end
    result = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(max(1, min(end, len(result))))
        action = rng.random()
        if action < 0.15:
            del result[at:]
        elif action < 0.45 and result:
            result[at % len(result)] ^= 1 << rng.randrange(8)
        elif action < 0.75:
            number = rng.choice((0, 1, 2**16, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1))
            packed = struct.pack("<Q", number)[: rng.choice((1, 4, 8))]
            result[at : at + len(packed)] = packed
        elif action < 0.85:
            result[at:at] = result[at : at + rng.randint(1, 64)]
        else:
            del result[at : at + rng.randint(1, 64)]
    return bytes(result)


def mutated_json(rng: random.Random, data: bytes) -> bytes:
    """A JSON text: mostly well-formed with wrong values, sometimes nested without end, or not JSON at all."""
    choice = rng.random()
    if choice < 0.8:
        return json.dumps(mutated_value(rng, json.loads(data))).encode()
    if choice < 0.85:
        brackets = "[" if rng.random() < 0.5 else '{"a":'
        at = data.index(b":") + 1
        return data[:at] + brackets.encode() * rng.choice((200, 2000, 100_000)) + data[at:]
    return mutated_bytes(rng, data)


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


def mutator(kind: str) -> Callable[[random.Random, bytes, Path], bytes]:
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


def attack(folder: Path, kind: str, count: int, seed: int = 0) -> tuple[int, int]:
    """Damage one kind of file ``count`` times; return how many opened and how many were refused.

    AssertionError for anything but a SonoranError of one printable line that names the folder's file, and for
    memory beyond MEMORY.
    """
    rng = random.Random(f"{kind}{seed}")
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
    intact, mutate = file.read_bytes(), mutator(kind)
    use(model)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    opened = refused = 0
    for _ in range(count):
        damaged = mutate(rng, intact, file)
        file.write_bytes(damaged)
        try:
            use(model)
            opened += 1
        except SonoranError as error:
            refused += 1
            text = str(error)
            assert text.isprintable(), f"{kind}: {text!r}"
            assert len(text) < LONGEST_MESSAGE, text
            assert str(model) in text or "chat template" in text, text
        except BaseException as error:
            kept = folder / f"kept-{kind}"
            kept.write_bytes(damaged)
            raise AssertionError(f"{type(error).__name__}: {error}; the file is {kept}") from error
        finally:
            file.write_bytes(intact)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < MEMORY, f"{kind}: {grown >> 20} MB"
    return opened, refused
