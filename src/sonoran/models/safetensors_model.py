"""Directories with safetensors, one file or several: canonical tensors over mapped files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from sonoran.errors import ModelError
from sonoran.models.architectures import Architecture
from sonoran.models.config import ModelConfig
from sonoran.models.hf_config import read_architecture
from sonoran.models.tensors import (
    FLOAT_TYPES,
    NORM_NAMES,
    TensorInfo,
    byte_size,
    check_config,
    check_tensors,
    dequantize,
    split_fused,
)
from sonoran.models.untrusted import read_json, refusing

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

TOP_NAMES = {
    "model.embed_tokens.weight": "embed",
    "lm_head.weight": "output",
    "model.norm.weight": "final_norm",
}
LAYER_TENSORS = {
    "input_layernorm.weight": "attn_norm",
    "post_attention_layernorm.weight": "ffn_norm",
    "self_attn.q_norm.weight": "q_norm",
    "self_attn.k_norm.weight": "k_norm",
    **{f"self_attn.{name}_proj.weight": name for name in "qkvo"},
    **{f"self_attn.{name}_proj.bias": f"{name}_bias" for name in "qkvo"},
    **{f"mlp.{name}_proj.weight": name for name in ("gate", "up", "down")},
}
EXPERT = re.compile(r"mlp\.experts\.(0|[1-9][0-9]{0,5})\.(gate|up|down)_proj\.weight")
# Old checkpoints carry the RoPE frequencies, which follow from the configuration.
COMPUTED = re.compile(r"model\.layers\.[0-9]+\.self_attn\.rotary_emb\.inv_freq")
# Of a model with images: where the names of its decoder begin otherwise, and what is not of the decoder.
OF_THE_DECODER = re.compile(r"(?:language_model\.model|model\.language_model)(?=\.)")
OF_IMAGES = re.compile(r"(?:model\.)?(?:vision_tower|multi_modal_projector)\..+")


def open_directory(directory: Path) -> tuple[ModelConfig, dict[str, TensorInfo]]:
    """Read configuration and tensors of a model directory; ModelError when they do not fit together."""
    with refusing(directory):
        return _open_directory(directory)


def _open_directory(directory: Path) -> tuple[ModelConfig, dict[str, TensorInfo]]:
    where = str(directory)
    with refusing(directory / "config.json"):
        architecture, config = read_architecture(directory / "config.json")
        check_config(str(directory / "config.json"), config)
    tensors: dict[str, TensorInfo] = {}
    for name, owner in _find_tensors(directory).items():
        canonical = _canonical_name(architecture, owner, name)
        if canonical is not None:
            with refusing(owner.path):
                tensors[canonical] = _tensor_info(owner, name, canonical)
    if config.tied_embeddings and {"embed", "output"} <= tensors.keys():
        _drop_copy(where, tensors)
    split_fused(where, config, tensors)
    if architecture.unit_norms:
        _add_one(tensors)
    check_tensors(where, config, tensors)
    return config, tensors


class _Shard:
    """One safetensors file: its header, checked by the package, and its mapped bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # The package checks that offsets are contiguous, fit types and shapes, and end with the file.
            with safe_open(path, framework="numpy") as checked:
                self.names = list(checked.keys())
        except (SafetensorError, OSError, ValueError) as error:
            size = path.stat().st_size if path.is_file() else 0
            raise ModelError(f"{path}: truncated or corrupt ({error}); the file has {size} bytes") from error
        with refusing(path):
            self.data: NDArray[np.uint8] = np.memmap(path, mode="r").view(np.ndarray)
            self.begin = 8 + int.from_bytes(self.data[:8].tobytes(), "little")
            self.header: dict[str, Any] = json.loads(self.data[8 : self.begin].tobytes())


def _find_tensors(directory: Path) -> dict[str, _Shard]:
    single, index = directory / SINGLE, directory / INDEX
    if single.is_file():
        shard = _Shard(single)
        return dict.fromkeys(shard.names, shard)
    if not index.is_file():
        found = sorted(
            path.name for path in directory.iterdir() if path.suffix in (".bin", ".gguf", ".safetensors")
        )
        hint = f"; it has {', '.join(found[:4])}" if found else ""
        raise ModelError(f"{directory}: neither {SINGLE} nor {INDEX} is there{hint}")
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise ModelError(f"{index}: weight_map is missing or not a mapping from tensors to files")
    shards = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file:
            raise ModelError(f"{index}: names the file {file!r}, expected a file of the same folder")
        if not (directory / file).is_file():
            raise ModelError(f"{directory}: {file} is missing, {INDEX} asks for it")
        shards[file] = _Shard(directory / file)
    for name, file in weight_map.items():
        if name not in shards[file].header:
            raise ModelError(f"{directory / file}: tensor {name} is missing, {INDEX} says that it is there")
    for file, shard in shards.items():
        for name in shard.names:
            if weight_map.get(name) != file:
                raise ModelError(f"{directory / file}: tensor {name} is not listed in {INDEX} for this file")
    return {name: shards[file] for name, file in weight_map.items()}


def _canonical_name(architecture: Architecture, shard: _Shard, name: str) -> str | None:
    if architecture.wholes:
        if OF_IMAGES.fullmatch(name):
            return None
        name = OF_THE_DECODER.sub("model", name, count=1).removeprefix("language_model.")
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    if COMPUTED.fullmatch(name):
        return None
    match = re.fullmatch(r"model\.layers\.(0|[1-9][0-9]{0,5})\.(.+)", name)
    last = {**LAYER_TENSORS, **architecture.hf_tensors}.get(match[2]) if match else None
    if match is not None and architecture.has_experts and (expert := EXPERT.fullmatch(match[2])):
        last = f"experts.{expert[1]}.{expert[2]}"
    if match is None or last is None:
        raise ModelError(
            f"{shard.path}: tensor {name} is not one that {architecture.models} or other supported models have"
        )
    return f"layers.{match[1]}.{last}"


def _tensor_info(shard: _Shard, name: str, canonical: str) -> TensorInfo:
    entry = shard.header[name]
    dtype, shape = str(entry["dtype"]), tuple(int(extent) for extent in entry["shape"])
    if dtype not in FLOAT_TYPES:
        raise ModelError(f"{shard.path}: tensor {name} has type {dtype}; supported: {', '.join(FLOAT_TYPES)}")
    begin, end = (shard.begin + int(offset) for offset in entry["data_offsets"])
    if not shape or end - begin != byte_size(dtype, shape):
        raise ModelError(
            f"{shard.path}: tensor {name} of shape {shape} and type {dtype} has {end - begin} bytes"
        )
    if canonical.endswith(".shared_router") and len(shape) == 2 and shape[0] == 1:
        shape = shape[1:]
    return TensorInfo(canonical, dtype, shape, shard.data[begin:end], name)


def _add_one(tensors: dict[str, TensorInfo]) -> None:
    """Norms that a file stores less 1, in float32 as the models compute them."""
    for name, tensor in list(tensors.items()):
        if name.rpartition(".")[2] in (*NORM_NAMES, "final_norm") and tensor.dtype in FLOAT_TYPES:
            values = dequantize(tensor) + np.float32(1)
            tensors[name] = TensorInfo(
                name, "F32", tensor.shape, values.reshape(-1).view(np.uint8), tensor.source
            )


def _drop_copy(where: str, tensors: dict[str, TensorInfo]) -> None:
    output, embed = tensors["output"], tensors["embed"]
    if output.dtype != embed.dtype or not np.array_equal(output.data, embed.data):
        raise ModelError(
            f"{where}: tie_word_embeddings is true, but lm_head.weight differs from the embeddings"
        )
    del tensors["output"]
