"""From the metadata and tensor names of a GGUF file to a configuration and canonical tensors."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import Keys

from sonoran.errors import ModelError
from sonoran.models.config import ModelConfig, RopeScaling
from sonoran.models.gguf_reader import GgufMetadata, RawTensor, read_gguf
from sonoran.models.hf_config import linear_scaling, yarn_factors
from sonoran.models.tensors import MATRIX_NAMES, TensorInfo, check_config, check_tensors, dequantize
from sonoran.models.untrusted import Fields, one_line, refusing, shown

log = logging.getLogger(__name__)

ARCHITECTURES = ("llama", "qwen2", "qwen3")

TOP_NAMES = {
    "token_embd.weight": "embed",
    "output.weight": "output",
    "output_norm.weight": "final_norm",
    "rope_freqs.weight": "rope_factors",
}
LAYER_TENSORS = {
    "attn_norm.weight": "attn_norm",
    "attn_q.weight": "q",
    "attn_k.weight": "k",
    "attn_v.weight": "v",
    "attn_output.weight": "o",
    "attn_q.bias": "q_bias",
    "attn_k.bias": "k_bias",
    "attn_v.bias": "v_bias",
    "attn_output.bias": "o_bias",
    "attn_q_norm.weight": "q_norm",
    "attn_k_norm.weight": "k_norm",
    "ffn_norm.weight": "ffn_norm",
    "ffn_gate.weight": "gate",
    "ffn_up.weight": "up",
    "ffn_down.weight": "down",
}
# Keys that this module reads.
READ = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.attn_factor",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "vocab_size",
    }
)
# Keys that say nothing about the arithmetic of these architectures, whatever their value.
WITHOUT_EFFECT = frozenset(
    {
        "attention.layer_norm_epsilon",  # of norms that are not RMS norms
        "decoder_start_token_id",
        "expert_used_count",  # of 0 experts
        "pooling_type",  # of embeddings
        "rope.scaling.finetuned",
    }
)
# Keys that other architectures obey and these do not have, with values that mean nothing there either.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.scale": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_weights_scale": (0.0, 1.0),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (-1.0, 1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "tensor_data_layout": ("Meta AI original pth",),
}
# Keys that these architectures ignore in llama.cpp: the file runs there as if they were missing.
IGNORED = frozenset({"attention.sliding_window", "attention.sliding_window_pattern"})
# Keys of the format, for whatever architecture, and what newer versions of it may put beside them.
OF_THE_FORMAT = frozenset(
    key.removeprefix("{arch}.")
    for group in vars(Keys).values()
    if isinstance(group, type)
    for key in vars(group).values()
    if isinstance(key, str) and key.startswith("{arch}.")
)
OTHER_FILES = {
    "adapter": "an adapter (LoRA), not a model; merge it into its model first",
    "imatrix": "an importance matrix for quantising, not a model",
    "mmproj": "the image or audio encoder of a model, not the model itself; pass the other file",
}


def open_gguf(path: Path) -> tuple[ModelConfig, dict[str, TensorInfo], GgufMetadata]:
    """Read configuration, tensors and metadata of one GGUF file; ModelError when they do not fit together."""
    with refusing(path):
        metadata, raw = read_gguf(path)
        where = str(path)
        fields = _fields(where, metadata)
        tensors = _canonical(where, [*raw, *_other_parts(path, metadata, len(raw))])
        _check_vocabulary(fields, metadata, tensors)
        config = _config(fields, tensors)
        tensors.pop("rope_factors", None)
        check_config(where, config)
        check_tensors(where, config, tensors)
        return config, tensors, metadata


def _fields(where: str, metadata: GgufMetadata) -> Fields:
    """The values of the file's architecture. Refuses files of another kind, and keys that are not understood."""
    kind = metadata.get("general.type", "model")
    if kind != "model":
        what = OTHER_FILES.get(kind) if isinstance(kind, str) else None
        raise ModelError(f"{where}: {what or f'a file of type {shown(kind)}, not a model'}")
    if _split(where, metadata, "split.no"):
        raise ModelError(
            f"{where}: part {_split(where, metadata, 'split.no') + 1} of {_split(where, metadata, 'split.count')} "
            "of a split GGUF file; pass the first part, the others are found beside it"
        )
    architecture = metadata.get("general.architecture")
    if architecture == "clip":
        raise ModelError(f"{where}: {OTHER_FILES['mmproj']}")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise ModelError(
            f"{where}: architecture {shown(architecture)} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    fields = _GgufFields(where, metadata, f"{architecture}.")
    for key in metadata:
        if key.startswith(fields.prefix):
            _check_key(fields, key.removeprefix(fields.prefix))
    return fields


def _split(where: str, metadata: GgufMetadata, key: str) -> int:
    value = metadata.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 16:
        raise ModelError(f"{where}: {key} is {shown(value)}, expected a number of parts")
    return value


def _other_parts(path: Path, metadata: GgufMetadata, found: int) -> list[RawTensor]:
    """Tensors of the parts after the first, whose files lie beside it under the names that llama.cpp gives."""
    count = _split(str(path), metadata, "split.count")
    if count <= 1:
        return []
    end = f"-00001-of-{count:05d}.gguf"
    if not path.name.endswith(end):
        raise ModelError(
            f"{path}: the first of {count} parts of a split GGUF file, its name must end with {end}"
        )
    tensors: list[RawTensor] = []
    for part in range(2, count + 1):
        file = path.with_name(f"{path.name.removesuffix(end)}-{part:05d}-of-{count:05d}.gguf")
        if not file.is_file():
            raise ModelError(f"{file} is missing: {path.name} is the first of {count} parts")
        with refusing(file):
            own, raw = read_gguf(file)
            if (_split(str(file), own, "split.no"), _split(str(file), own, "split.count")) != (
                part - 1,
                count,
            ):
                raise ModelError(f"{file}: does not say that it is part {part} of {count}")
            tensors += raw
    total = metadata.get("split.tensors.count", found + len(tensors))
    if total != found + len(tensors):
        raise ModelError(
            f"{path}: has {shown(total)} tensors in all, but its parts have {found + len(tensors)}"
        )
    return tensors


def _check_key(fields: Fields, key: str) -> None:
    """Refuse a key that may change the arithmetic in a way that the decoder has not.

    A key that the format does not know either changes nothing anywhere: that is said once, and the file opened.
    """
    if key in READ or key in WITHOUT_EFFECT:
        return
    value = fields.get(key)
    name = one_line(f"{fields.prefix}{key} = {shown(value)}")
    if key in IGNORED and not isinstance(value, np.ndarray) and not value:
        return
    if key in IGNORED:
        log.warning(
            "%s: %s has no effect in this architecture, every layer sees the whole text", fields.where, name
        )
        return
    if not isinstance(value, np.ndarray) and value in NEUTRAL.get(key, (0, False, "")):
        return
    if key in OF_THE_FORMAT or key.startswith(("rope.", "attention.")):
        raise ModelError(f"{fields.where}: {name} is not supported")
    log.warning("%s: %s is not known, it is taken to change nothing", fields.where, name)


class _GgufFields(Fields):
    """Values of the file's architecture; what is the same in all layers may be a list with a value for each."""

    def get(self, key: str) -> Any:
        value = super().get(key)
        if isinstance(value, np.ndarray) and value.ndim == 1 and value.size and (value == value[0]).all():
            return value[0].item()
        if (
            isinstance(value, np.ndarray)
            and value.size
            and key.startswith(("attention.head_count", "feed_f"))
        ):
            raise ModelError(f"{self.where}: {self.prefix}{key} differs between layers")
        return value


def _canonical(where: str, raw: list[RawTensor]) -> dict[str, TensorInfo]:
    tensors = {}
    for tensor in raw:
        name = TOP_NAMES.get(tensor.name)
        if name is None:
            match = re.fullmatch(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)", tensor.name)
            last = LAYER_TENSORS.get(match[2]) if match else None
            if match is None or last is None:
                raise ModelError(
                    f"{where}: tensor {tensor.name} is not one that the supported architectures have"
                )
            name = f"layers.{match[1]}.{last}"
        if name in tensors:
            raise ModelError(f"{where}: tensor {tensor.name} is in two parts of the file")
        shape = tensor.shape
        while (
            len(shape) > 1
            and shape[0] == 1
            and name.rpartition(".")[2] not in ("embed", "output", *MATRIX_NAMES)
        ):
            shape = shape[1:]
        tensors[name] = TensorInfo(name, tensor.dtype, shape, tensor.data, tensor.name)
    return tensors


def _config(fields: Fields, tensors: Mapping[str, TensorInfo]) -> ModelConfig:
    where, architecture = fields.where, fields.prefix.removesuffix(".")
    heads = fields.dimension("attention.head_count")
    hidden = fields.dimension("embedding_length")
    head_dim = fields.dimension("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(key, head_dim) != head_dim:
            raise ModelError(
                f"{where}: {architecture}.{key} is {fields.integer(key)}, but heads have {head_dim} "
                "elements; only whole heads of equal size are supported"
            )
    return ModelConfig(
        architecture=architecture,
        vocab_size=tensors["embed"].shape[0],
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count"),
        num_heads=heads,
        num_kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position=fields.integer("context_length"),
        rope_theta=fields.number("rope.freq_base", 10000.0),
        norm_epsilon=fields.number("attention.layer_norm_rms_epsilon"),
        rope_interleaved=architecture == "llama",
        rope_scaling=_rope_scaling(fields, tensors, head_dim),
        attention_bias=architecture == "qwen2" or "layers.0.q_bias" in tensors,
        output_bias="layers.0.o_bias" in tensors,
        qk_norm=architecture == "qwen3",
        tied_embeddings="output" not in tensors,
    )


def _check_vocabulary(fields: Fields, metadata: GgufMetadata, tensors: Mapping[str, TensorInfo]) -> None:
    for name in ("embed", "final_norm"):
        if name not in tensors:
            raise ModelError(f"{fields.where}: tensor {name} is missing; the file is incomplete")
    vocab_size = tensors["embed"].shape[0]
    declared = fields.integer("vocab_size", vocab_size)
    if declared != vocab_size:
        raise ModelError(
            f"{fields.where}: {fields.prefix}vocab_size is {declared}, "
            f"but token_embd.weight has {vocab_size} rows"
        )
    tokens = metadata.array_length("tokenizer.ggml.tokens")
    if tokens > vocab_size:
        raise ModelError(f"{fields.where}: {tokens} tokens, but token_embd.weight has only {vocab_size} rows")


def _rope_scaling(fields: Fields, tensors: Mapping[str, TensorInfo], head_dim: int) -> RopeScaling | None:
    """Divisors of the file's tensor, times those of linear scaling, which is the type where none is given."""
    kind = fields.get("rope.scaling.type")
    if kind not in (None, "none", "linear", "yarn"):
        raise fields.wrong("rope.scaling.type", kind, "'none', 'linear' or 'yarn', those that are supported")
    if kind != "yarn" and fields.number("rope.scaling.attn_factor", 1.0) not in (0.0, 1.0):
        raise fields.wrong(
            "rope.scaling.attn_factor", fields.get("rope.scaling.attn_factor"), "1.0 without YaRN"
        )
    linear = None
    if kind == "yarn":
        if "rope_factors" in tensors:
            raise ModelError(f"{fields.where}: YaRN together with a tensor of RoPE factors is not supported")
        return _yarn(fields, head_dim)
    if kind != "none":
        factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 0.0))
        linear = linear_scaling(factor, head_dim) if factor != 0 else None
    tensor = tensors.get("rope_factors")
    if tensor is None:
        return linear
    if len(tensor.shape) != 1:
        raise ModelError(
            f"{fields.where}: tensor {tensor.source} has shape {tensor.shape}, expected a vector"
        )
    factors = dequantize(tensor).astype(np.float64)
    return RopeScaling(tuple((factors * linear.factors[0] if linear else factors).tolist()))


def _yarn(fields: Fields, head_dim: int) -> RopeScaling:
    """YaRN as llama.cpp computes it from a file's keys."""
    factor = fields.positive("rope.scaling.factor")
    factors = yarn_factors(
        factor,
        fields.positive("rope.scaling.original_context_length", fields.number("context_length")),
        fields.positive("rope.freq_base", 10000.0),
        head_dim,
        fields.positive("rope.scaling.yarn_beta_fast", 32.0),
        fields.positive("rope.scaling.yarn_beta_slow", 1.0),
    )
    magnitude = 1 + 0.1 * math.log(factor) if factor > 1 else 1.0
    return RopeScaling(factors, magnitude * (fields.number("rope.scaling.attn_factor", 0.0) or 1.0))
