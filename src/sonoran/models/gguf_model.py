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
from numpy.typing import NDArray

from sonoran.errors import ModelError
from sonoran.models.architectures import BY_GGUF, REFUSED, Architecture
from sonoran.models.config import Experts, ModelConfig, RopeScaling
from sonoran.models.gguf_reader import GgufMetadata, RawTensor, read_gguf
from sonoran.models.hf_config import linear_scaling, yarn_factors
from sonoran.models.tensors import (
    MATRIX_NAMES,
    TensorInfo,
    check_config,
    check_tensors,
    dequantize,
    split_fused,
)
from sonoran.models.untrusted import Fields, one_line, refusing, shown

log = logging.getLogger(__name__)

TOP_NAMES = {
    "token_embd.weight": "embed",
    "output.weight": "output",
    "output_norm.weight": "final_norm",
    "rope_freqs.weight": "rope_factors",
    "rope_factors_long.weight": "rope_factors_long",
    "rope_factors_short.weight": "rope_factors_short",
}
ROPE_TENSORS = ("rope_factors", "rope_factors_long", "rope_factors_short")
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
# Keys that this module reads for every architecture; others are in the table of architectures.
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
        architecture, fields = _fields(where, metadata)
        tensors = _canonical(where, architecture, [*raw, *_other_parts(path, metadata, len(raw))])
        _check_vocabulary(fields, metadata, tensors)
        config = _config(architecture, fields, tensors)
        for name in ROPE_TENSORS:
            tensors.pop(name, None)
        check_config(where, config)
        split_fused(where, config, tensors)
        check_tensors(where, config, tensors)
        return config, tensors, metadata


def _fields(where: str, metadata: GgufMetadata) -> tuple[Architecture, Fields]:
    """The file's architecture and its values. Refuses files of another kind, and keys that are not understood."""
    kind = metadata.get("general.type", "model")
    if kind != "model":
        what = OTHER_FILES.get(kind) if isinstance(kind, str) else None
        raise ModelError(f"{where}: {what or f'a file of type {shown(kind)}, not a model'}")
    if _split(where, metadata, "split.no"):
        raise ModelError(
            f"{where}: part {_split(where, metadata, 'split.no') + 1} of {_split(where, metadata, 'split.count')} "
            "of a split GGUF file; pass the first part, the others are found beside it"
        )
    name = metadata.get("general.architecture")
    if name == "clip":
        raise ModelError(f"{where}: {OTHER_FILES['mmproj']}")
    if not isinstance(name, str) or name not in BY_GGUF:
        lacking = f" ({REFUSED[name]})" if isinstance(name, str) and name in REFUSED else ""
        raise ModelError(
            f"{where}: architecture {shown(name)} is not supported{lacking}; supported: {', '.join(BY_GGUF)}"
        )
    architecture = BY_GGUF[name]
    fields = _GgufFields(where, metadata, f"{name}.")
    for key in metadata:
        if key.startswith(fields.prefix):
            _check_key(architecture, fields, key.removeprefix(fields.prefix))
    return architecture, fields


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


def _check_key(architecture: Architecture, fields: Fields, key: str) -> None:
    """Refuse a key that may change the arithmetic in a way that the decoder has not.

    A key that the format does not know either changes nothing anywhere: that is said once, and the file opened.
    """
    if key in READ or key in architecture.gguf_keys or key in WITHOUT_EFFECT:
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
            and key.startswith(("attention.head_count", "feed_f", "expert_"))
        ):
            raise ModelError(f"{self.where}: {self.prefix}{key} differs between layers")
        return value


def _canonical(where: str, architecture: Architecture, raw: list[RawTensor]) -> dict[str, TensorInfo]:
    names = {**LAYER_TENSORS, **architecture.gguf_tensors}
    tensors = {}
    for tensor in raw:
        name = TOP_NAMES.get(tensor.name)
        if name is None:
            match = re.fullmatch(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)", tensor.name)
            last = names.get(match[2]) if match else None
            if match is None or last is None:
                raise ModelError(
                    f"{where}: tensor {tensor.name} is not one that {architecture.models} or other supported "
                    "models have"
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


def _config(architecture: Architecture, fields: Fields, tensors: Mapping[str, TensorInfo]) -> ModelConfig:
    where = fields.where
    heads = fields.dimension("attention.head_count")
    hidden = fields.dimension("embedding_length")
    layers = fields.dimension("block_count")
    head_dim = fields.dimension("attention.key_length", hidden // heads)
    rotated = head_dim
    if "rope.dimension_count" in architecture.gguf_keys:
        rotated = fields.dimension("rope.dimension_count", head_dim)
    for key in ("attention.value_length", "rope.dimension_count"):
        expected = rotated if key.startswith("rope") else head_dim
        if fields.integer(key, expected) != expected:
            raise ModelError(
                f"{where}: {fields.prefix}{key} is {fields.integer(key)}, but heads have {head_dim} "
                "elements; only whole heads of equal size are supported"
            )
    scaling, long = _rope_scaling(architecture, fields, tensors, rotated)
    theta = fields.number("rope.freq_base", 10000.0)
    windows, local_theta = _windows(architecture, fields, layers, theta)
    return ModelConfig(
        architecture=architecture.name,
        vocab_size=tensors["embed"].shape[0],
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position=fields.integer("context_length"),
        rope_theta=theta,
        norm_epsilon=fields.number("attention.layer_norm_rms_epsilon"),
        rope_interleaved=architecture.interleaved,
        rope_scaling=scaling,
        long_rope_scaling=long,
        rotary_dim=rotated if rotated != head_dim else None,
        attention_bias=architecture.qkv_bias
        or bool({"layers.0.q_bias", "layers.0.qkv_bias"} & tensors.keys()),
        output_bias="layers.0.o_bias" in tensors,
        qk_norm=bool(architecture.qk_norm),
        whole_qk_norm=architecture.qk_norm == "whole",
        tied_embeddings="output" not in tensors,
        sliding_windows=windows,
        window_rope_theta=local_theta,
        norms=architecture.norms,
        activation=architecture.activation,
        rotated_layers=_rotated_layers(architecture, fields, layers),
        experts=_experts(fields) if architecture.has_experts else None,
        **_scales(architecture, fields, hidden, heads, head_dim, layers),
    )


def _scales(
    architecture: Architecture, fields: Fields, hidden: int, heads: int, head_dim: int, layers: int
) -> dict[str, Any]:
    """Factors and caps; those of Gemma that no key gives are those of llama.cpp, which knows the 27B by its layers."""
    if architecture.name == "granite":
        return {
            "embedding_scale": fields.number("embedding_scale", 0.0) or 1.0,
            "residual_scale": fields.number("residual_scale", 0.0) or 1.0,
            "attention_scale": fields.number("attention.scale", 0.0) or None,
            "logit_scale": 1 / fields.positive("logit_scale"),
        }
    if architecture.name not in ("gemma2", "gemma3"):
        return {}
    second = architecture.name == "gemma2"
    scalar = hidden // heads if layers == (46 if second else 62) else head_dim
    return {
        "embedding_scale": math.sqrt(hidden),
        "attention_scale": scalar**-0.5 if scalar != head_dim else None,
        "attention_softcap": fields.number("attn_logit_softcapping", 50.0 if second else 0.0) or None,
        "logit_softcap": fields.number("final_logit_softcapping", 30.0 if second else 0.0) or None,
    }


def _windows(
    architecture: Architecture, fields: Fields, layers: int, theta: float
) -> tuple[tuple[int | None, ...], float | None]:
    """The window of each layer, and the RoPE base of the layers that have one where they rotate otherwise."""
    if "attention.sliding_window" not in architecture.gguf_keys:
        return (), None
    default = 4096 if architecture.name == "gemma2" else 0
    window = fields.integer("attention.sliding_window", default)
    if window == 0:
        return (), None
    pattern = fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, bool):
        slides = [pattern] * layers
    elif pattern is None or isinstance(pattern, int):
        every = architecture.window_pattern if pattern is None else pattern
        slides = [every == 0 or i % every < every - 1 for i in range(layers)]
    elif isinstance(pattern, np.ndarray) and pattern.shape == (layers,):
        slides = [bool(value) for value in pattern]
    else:
        raise fields.wrong(
            "attention.sliding_window_pattern", pattern, f"a number, or a value for each of {layers} layers"
        )
    unscaled = (architecture.local_theta or theta) if architecture.unscaled_windows else 0.0
    base = fields.number("rope.freq_base_swa", unscaled)
    return tuple(window if slide else None for slide in slides) if any(slides) else (), base or None


def _rotated_layers(architecture: Architecture, fields: Fields, layers: int) -> tuple[bool, ...]:
    if architecture.name == "smollm3":
        return tuple((i + 1) % 4 != 0 for i in range(layers))
    if "rope.scaling.finetuned" in architecture.gguf_keys and not fields.flag("rope.scaling.finetuned", True):
        return (False,) * layers  # Granite's way to say that no layer knows positions
    return ()


def _experts(fields: Fields) -> Experts:
    second = fields.prefix == "qwen2moe."
    shared = fields.integer("expert_shared_feed_forward_length", 0)
    used = fields.dimension("expert_used_count")
    middle = fields.integer("feed_forward_length")
    return Experts(
        count=fields.dimension("expert_count"),
        per_token=used,
        intermediate_size=fields.integer("expert_feed_forward_length", middle // used),
        normalized=fields.flag("expert_weights_norm", not second),
        shared_size=(shared or middle) if second else 0,
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


def _rope_scaling(
    architecture: Architecture, fields: Fields, tensors: Mapping[str, TensorInfo], rotated: int
) -> tuple[RopeScaling | None, RopeScaling | None]:
    """Scaling, and for LongRoPE that of long contexts beside it.

    Divisors of the file's tensor, times those of linear scaling, which is the type where none is given.
    """
    kind = fields.get("rope.scaling.type")
    if kind not in (None, "none", "linear", "yarn", "longrope"):
        raise fields.wrong(
            "rope.scaling.type", kind, "'none', 'linear', 'yarn' or 'longrope', those that are supported"
        )
    if {"rope_factors_long", "rope_factors_short"} & tensors.keys():
        return _longrope(fields, tensors)
    if kind == "longrope":
        raise ModelError(
            f"{fields.where}: LongRoPE needs the tensors rope_factors_long and rope_factors_short"
        )
    if kind != "yarn" and fields.number("rope.scaling.attn_factor", 1.0) not in (0.0, 1.0):
        raise fields.wrong(
            "rope.scaling.attn_factor", fields.get("rope.scaling.attn_factor"), "1.0 without YaRN"
        )
    linear = None
    if kind == "yarn":
        if "rope_factors" in tensors:
            raise ModelError(f"{fields.where}: YaRN together with a tensor of RoPE factors is not supported")
        return _yarn(architecture, fields, rotated), None
    if kind != "none":
        factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 0.0))
        linear = linear_scaling(factor, rotated) if factor != 0 else None
    if "rope_factors" not in tensors:
        return linear, None
    factors = _factors(fields, tensors, "rope_factors")
    return RopeScaling(tuple((factors * linear.factors[0] if linear else factors).tolist())), None


def _factors(fields: Fields, tensors: Mapping[str, TensorInfo], name: str) -> NDArray[np.float64]:
    tensor = tensors.get(name)
    if tensor is None:
        raise ModelError(f"{fields.where}: tensor {name}.weight is missing; the file is incomplete")
    if len(tensor.shape) != 1:
        raise ModelError(
            f"{fields.where}: tensor {tensor.source} has shape {tensor.shape}, expected a vector"
        )
    return dequantize(tensor).astype(np.float64)


def _longrope(
    fields: Fields, tensors: Mapping[str, TensorInfo]
) -> tuple[RopeScaling | None, RopeScaling | None]:
    """Factors of short and of long contexts (arXiv 2402.13753), with the attention factor that converters write."""
    context = fields.dimension("rope.scaling.original_context_length", fields.integer("context_length"))
    attention = fields.number("rope.scaling.attn_factor", 0.0) or 1.0
    short, long = (
        tuple(_factors(fields, tensors, f"rope_factors_{kind}").tolist()) for kind in ("short", "long")
    )
    return RopeScaling(short, attention, context), RopeScaling(long, attention)


def _yarn(architecture: Architecture, fields: Fields, head_dim: int) -> RopeScaling:
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
    given = fields.number("rope.scaling.attn_factor", 0.0)
    if architecture.whole_yarn_factor:
        return RopeScaling(factors, given or magnitude)
    return RopeScaling(factors, magnitude * (given or 1.0))
