"""From a Hugging Face ``config.json`` to a configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sonoran.errors import ModelError
from sonoran.models.architectures import BY_CLASS, BY_TYPE, BY_WHOLE, REFUSED, Architecture
from sonoran.models.config import Experts, ModelConfig, RopeScaling
from sonoran.models.untrusted import Fields, finite, read_json, shown

ROPE_KINDS = ("default", "dynamic", "linear", "llama3", "longrope", "yarn")
DEFAULT_WINDOW = 4096
HEAD_DIMS = {"qwen3": 128, "gemma2": 256, "gemma3": 256}  # where it does not follow from the width
NO_BIAS = ("mistral", "qwen2", "qwen2_moe", "phi3")  # their model code does not read attention_bias
# One key/value head per query head, unless the file says another number.
AS_MANY_KV_HEADS = ("llama", "phi3", "granite", "olmo2", "olmo3")

# What a model with images says for its text part too.
OF_THE_WHOLE = ("quantization_config", "tie_word_embeddings")


def read_hf_config(path: Path) -> ModelConfig:
    """Read ``config.json``. Raises ModelError for architectures and options the decoder does not have."""
    return read_architecture(path)[1]


def read_architecture(path: Path) -> tuple[Architecture, ModelConfig]:
    """Read ``config.json``; also return the architecture's row of the table. Of a model with images, its text part."""
    fields = Fields(path, read_json(path))
    architecture = _architecture(fields)
    return architecture, _config(architecture, _text_part(architecture, fields))


def _text_part(architecture: Architecture, fields: Fields) -> Fields:
    """The fields of the decoder: those of ``text_config`` where the model is more than a decoder."""
    names = fields.get("architectures")
    if not (isinstance(names, list) and names and names[0] in architecture.wholes):
        return fields
    part = fields.get("text_config")
    if not isinstance(part, dict):
        raise fields.wrong("text_config", part, "an object")
    outside = {key: fields.values[key] for key in OF_THE_WHOLE if key in fields.values}
    given = {key: value for key, value in part.items() if value is not None or key == "sliding_window"}
    return Fields(f"{fields.where}: text_config", {**architecture.part_defaults, **outside, **given})


def _config(architecture: Architecture, fields: Fields) -> ModelConfig:
    name = architecture.name
    _refuse_unsupported(architecture, fields)
    heads = fields.dimension("num_attention_heads")
    hidden = fields.dimension("hidden_size")
    head_dim = fields.dimension("head_dim", HEAD_DIMS.get(name, hidden // heads))
    layers = fields.dimension("num_hidden_layers")
    bias = name not in NO_BIAS and fields.flag("attention_bias", False)
    may_lack = name in AS_MANY_KV_HEADS or "num_key_value_heads" in fields.values
    rotated = _rotated(architecture, fields, head_dim)
    theta, scaling, long, local_theta = _rope(architecture, fields, rotated)
    return ModelConfig(
        architecture=name,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads if may_lack else None),
        head_dim=head_dim,
        max_position=_context(fields, scaling),
        rope_theta=theta,
        norm_epsilon=fields.number("rms_norm_eps"),
        rope_interleaved=False,
        rope_scaling=scaling,
        long_rope_scaling=long,
        rotary_dim=rotated if rotated != head_dim else None,
        window_rope_theta=local_theta,
        attention_bias=_qkv_bias(architecture, fields) or bias,
        output_bias=bias,
        qk_norm=bool(architecture.qk_norm),
        whole_qk_norm=architecture.qk_norm == "whole",
        tied_embeddings=fields.flag("tie_word_embeddings", architecture.tied),
        sliding_windows=_sliding_windows(fields, architecture, layers),
        norms=architecture.norms,
        activation=architecture.activation,
        rotated_layers=_rotated_layers(fields, layers) if name == "smollm3" else (),
        experts=_experts(fields, shared=name == "qwen2_moe") if architecture.has_experts else None,
        **_scales(architecture, fields, hidden, head_dim),
    )


def _qkv_bias(architecture: Architecture, fields: Fields) -> bool:
    if architecture.name == "qwen2_moe":
        return fields.flag("qkv_bias", True)
    return architecture.qkv_bias


def _scales(architecture: Architecture, fields: Fields, hidden: int, head_dim: int) -> dict[str, Any]:
    """Factors and caps of Granite and Gemma."""
    if architecture.name == "granite":
        return {
            "embedding_scale": fields.positive("embedding_multiplier", 1.0),
            "residual_scale": fields.positive("residual_multiplier", 1.0),
            "attention_scale": fields.positive("attention_multiplier", 1.0),
            "logit_scale": 1 / fields.positive("logits_scaling", 1.0),
        }
    if architecture.name not in ("gemma2", "gemma3"):
        return {}
    second = architecture.name == "gemma2"
    scalar = fields.positive("query_pre_attn_scalar", 256.0)

    def cap(key: str, default: float) -> float | None:
        missing = second and key not in fields.values
        return default if missing else fields.number(key, 0.0) or None

    return {
        # As in float32; transformers rounds it to the type of the weights that it computes in.
        "embedding_scale": math.sqrt(hidden),
        "attention_scale": scalar**-0.5 if scalar != head_dim else None,
        "attention_softcap": cap("attn_logit_softcapping", 50.0) if second else None,
        "logit_softcap": cap("final_logit_softcapping", 30.0),
    }


def _rotated(architecture: Architecture, fields: Fields, head_dim: int) -> int:
    """Elements of a head that are rotated: Phi may have a part only."""
    inner = fields.get("rope_parameters") or fields.get("rope_scaling")
    places = [fields]
    if isinstance(inner, dict):
        places.insert(0, Fields(f"{fields.where}: rope_parameters", inner))
    for place in places:
        share = place.number("partial_rotary_factor", 1.0)
        if architecture.name != "phi3" and share != 1.0:
            raise place.wrong("partial_rotary_factor", share, "1.0, whole heads")
        if not 0 < share <= 1:
            raise place.wrong("partial_rotary_factor", share, "a share of a head")
        if share != 1.0:
            return int(head_dim * share)
    return head_dim


def _rotated_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """SmolLM3: 0 in ``no_rope_layers`` is a layer that knows no positions; by default every fourth."""
    listed = fields.get("no_rope_layers")
    if listed is None:
        every = fields.dimension("no_rope_layer_interval", 4)
        return tuple((i + 1) % every != 0 for i in range(layers))
    if not isinstance(listed, list) or len(listed) != layers or not all(value in (0, 1) for value in listed):
        raise fields.wrong("no_rope_layers", listed, f"0 or 1 for each of {layers} layers")
    return tuple(bool(value) for value in listed)


def _experts(fields: Fields, shared: bool) -> Experts:
    """Qwen's experts, which all layers must have."""
    if fields.get("mlp_only_layers") or fields.integer("decoder_sparse_step", 1) != 1:
        raise ModelError(
            f"{fields.where}: layers without experts among others (mlp_only_layers, decoder_sparse_step) are not "
            "supported"
        )
    key = "num_experts" if "num_experts" in fields.values else "num_local_experts"
    return Experts(
        count=fields.dimension(key),
        per_token=fields.dimension("num_experts_per_tok"),
        intermediate_size=fields.dimension("moe_intermediate_size"),
        normalized=fields.flag("norm_topk_prob", False),
        shared_size=fields.dimension("shared_expert_intermediate_size") if shared else 0,
    )


def llama3_factors(parameters: Mapping[str, float], theta: float, head_dim: int) -> tuple[float, ...]:
    """Divisors of the RoPE frequencies under the ``llama3`` rule, one for each of the head_dim / 2 pairs.

    With t = original context / wavelength, the turns of a pair within the original context: frequencies with
    t > high_freq_factor stay, those with t < low_freq_factor are divided by ``factor``, and between them the
    frequency is interpolated linearly in t (Llama 3.1 model code, ``apply_scaling``).
    """
    factor, original = parameters["factor"], parameters["original_max_position_embeddings"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    divisors = []
    for pair in range(head_dim // 2):
        turns = original * theta ** (-2 * pair / head_dim) / (2 * math.pi)
        if turns > high:
            divisors.append(1.0)
        elif turns < low:
            divisors.append(float(factor))
        else:
            smooth = (turns - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return tuple(divisors)


def _architecture(fields: Fields) -> Architecture:
    names, kind = fields.get("architectures"), fields.get("model_type")
    lacking = f" ({REFUSED[kind]})" if isinstance(kind, str) and kind in REFUSED else ""
    if isinstance(names, list) and names:
        name, known = str(names[0]), {**BY_CLASS, **BY_WHOLE}
        if name not in known:
            raise ModelError(
                f"{fields.where}: architecture {shown(name)} is not supported{lacking}; "
                f"supported: {', '.join(known)}"
            )
        return known[name]
    if not isinstance(kind, str) or kind not in BY_TYPE:
        raise ModelError(
            f"{fields.where}: model_type {shown(kind)} is not supported{lacking}; supported: {', '.join(BY_TYPE)}"
        )
    return BY_TYPE[kind]


def _refuse_unsupported(architecture: Architecture, fields: Fields) -> None:
    method = fields.get("quantization_config")
    if method is not None:
        kind = method.get("quant_method") if isinstance(method, dict) else method
        raise ModelError(
            f"{fields.where}: weights quantised by {shown(kind)} are not supported; use F32, F16, BF16 or a GGUF"
        )
    gelu = architecture.activation == "gelu_tanh"
    key, only = ("hidden_activation", "gelu_pytorch_tanh") if gelu else ("hidden_act", "silu")
    if fields.get(key) not in (None, only):
        raise fields.wrong(key, fields.get(key), f"{only!r}, the only one supported")
    if fields.flag("use_bidirectional_attention", False):
        raise ModelError(f"{fields.where}: use_bidirectional_attention is not supported")
    if fields.flag("mlp_bias", False):
        raise ModelError(f"{fields.where}: mlp_bias is not supported")


def _rope(
    architecture: Architecture, fields: Fields, rotated: int
) -> tuple[float, RopeScaling | None, RopeScaling | None, float | None]:
    """Base, scaling, that for long contexts, and the base of layers with a window if it is another.

    From the older spelling (rope_theta, rope_scaling) or the newer (rope_parameters).
    """
    name = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    values = fields.get(name) or {}
    if not isinstance(values, dict):
        raise fields.wrong(name, values, "an object")
    local_theta = None
    if architecture.unscaled_windows:
        values, local_theta = _global_rope(fields, name, values)
    nested = next((key for key, value in values.items() if isinstance(value, dict)), None)
    if nested is not None:
        raise ModelError(f"{fields.where}: {name} of its own for {shown(nested)} is not supported")
    outside = fields.get("original_max_position_embeddings")  # where it stands, it counts
    values = values | ({} if outside is None else {"original_max_position_embeddings": outside})
    rope = Fields(f"{fields.where}: {name}", values)
    theta = (rope if "rope_theta" in values else fields).positive("rope_theta", architecture.theta)
    if architecture.unscaled_windows and local_theta is None:
        local_theta = architecture.local_theta or theta
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "longrope" or (architecture.name == "phi3" and kind in ("su", "yarn")):
        return theta, *_longrope(fields, rope), local_theta
    return theta, _scaling(fields, rope, kind, theta, rotated), None, local_theta


def _global_rope(fields: Fields, name: str, values: dict[str, Any]) -> tuple[dict[str, Any], float | None]:
    """The RoPE of layers without a window, and the base of the others if the file gives it; they are not scaled."""

    def base(place: Fields, key: str) -> float | None:
        return None if place.get(key) is None else place.positive(key)

    if not any(isinstance(value, dict) for value in values.values()):
        return values, base(fields, "rope_local_base_freq")
    parts = []
    for key in ("full_attention", "sliding_attention"):
        part = values.get(key) or {}
        if not isinstance(part, dict):
            raise fields.wrong(f"{name}.{key}", part, "an object")
        parts.append(part)
    unknown = next((key for key in values if key not in ("full_attention", "sliding_attention")), None)
    if unknown is not None:
        raise ModelError(f"{fields.where}: {name} of its own for {shown(unknown)} is not supported")
    kind = parts[1].get("rope_type", "default")
    if kind != "default":
        raise ModelError(
            f"{fields.where}: {name}: RoPE scaling {shown(kind)} of layers with a window is not supported"
        )
    return parts[0], base(Fields(f"{fields.where}: {name}", parts[1]), "rope_theta")


def _scaling(fields: Fields, rope: Fields, kind: Any, theta: float, rotated: int) -> RopeScaling | None:
    if kind == "default":
        return None
    if kind == "dynamic" and rope.get("alpha") is None:
        return None  # which it is up to max_position_embeddings, and further is not supported
    if kind == "linear":
        return linear_scaling(rope.positive("factor"), rotated)
    if kind == "llama3":
        needed = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        numbers = {key: rope.positive(key) for key in needed}
        if numbers["high_freq_factor"] <= numbers["low_freq_factor"]:
            raise rope.wrong("high_freq_factor", numbers["high_freq_factor"], "more than low_freq_factor")
        return RopeScaling(llama3_factors(numbers, theta, rotated))
    if kind == "yarn":
        return _yarn(rope, theta, rotated, fields.positive("max_position_embeddings"))
    raise ModelError(
        f"{fields.where}: RoPE scaling {shown(kind)} is not supported; "
        f"supported: {', '.join(map(repr, ROPE_KINDS))}"
    )


def _longrope(fields: Fields, rope: Fields) -> tuple[RopeScaling, RopeScaling]:
    """Scaling of contexts up to the original one and of longer ones (arXiv 2402.13753), as in transformers."""
    context = fields.positive("max_position_embeddings")
    original = rope.positive("original_max_position_embeddings", context)
    factor = rope.positive("factor", context / original)
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    attention = rope.positive("attention_factor", default)
    divisors = []
    for key in ("short_factor", "long_factor"):
        values = rope.get(key)
        numbers = [finite(value) for value in values] if isinstance(values, list) else []
        if not numbers or None in numbers:
            raise rope.wrong(key, values, "a list of numbers")
        divisors.append(tuple(number for number in numbers if number is not None))
    return RopeScaling(divisors[0], attention, int(original)), RopeScaling(divisors[1], attention)


def _context(fields: Fields, scaling: RopeScaling | None) -> int:
    """Positions that the model is made for. Under YaRN a file may still give those before it was extended."""
    context = fields.integer("max_position_embeddings")
    return max(context, scaling.context) if scaling is not None and scaling.context is not None else context


def _yarn(rope: Fields, theta: float, head_dim: int, context: float) -> RopeScaling:
    """The keys of transformers' ``yarn``, with its defaults."""
    original = rope.positive("original_max_position_embeddings", context)
    factor = rope.positive("factor", context / original)

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    one, all_dims = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    default = magnitude(one) / magnitude(all_dims) if one and all_dims else magnitude(1.0)
    factors = yarn_factors(
        factor,
        original,
        theta,
        head_dim,
        rope.number("beta_fast", 0.0) or 32.0,
        rope.number("beta_slow", 0.0) or 1.0,
        rope.flag("truncate", True),
    )
    return RopeScaling(factors, rope.positive("attention_factor", default), int(original * factor))


def yarn_factors(
    factor: float,
    original: float,
    theta: float,
    head_dim: int,
    fast: float,
    slow: float,
    truncate: bool = True,
) -> tuple[float, ...]:
    """Divisors of the RoPE frequencies under YaRN (arXiv 2309.00071, section 3.2, as in transformers, llama.cpp).

    Pairs that turn at least ``fast`` times within the original context stay, those that turn at most ``slow``
    times are divided by ``factor``; between them the frequency falls linearly in the pair's number.
    """

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    slowed = (min(max((pair - low) / width, 0.0), 1.0) for pair in range(head_dim // 2))
    return tuple(1 / (share / factor + 1 - share) for share in slowed)


def linear_scaling(factor: float, head_dim: int) -> RopeScaling | None:
    """All frequencies divided by the same factor, as if positions lay closer; None for a factor of 1."""
    return RopeScaling((factor,) * (head_dim // 2)) if factor != 1 else None


def _sliding_windows(fields: Fields, architecture: Architecture, layers: int) -> tuple[int | None, ...]:
    """The window of each layer, as transformers' model code reads it; empty when no layer has one.

    Llama, Granite and OLMo 2 have none whatever the file says, Mistral and Phi the same in all layers (unless the
    file says null), Gemma and OLMo 3 by a pattern or ``layer_types``, Qwen only with ``use_sliding_window``: in the
    layers of ``layer_types``, or from ``max_window_layers`` on.
    """
    if architecture.name in ("llama", "granite", "olmo2"):
        return ()
    if architecture.window_pattern:
        return _patterned_windows(fields, architecture, layers)
    if architecture.name == "phi3":
        window = fields.get("sliding_window")
        return () if window is None else (fields.integer("sliding_window"),) * layers
    if architecture.name in ("smollm3", "qwen2_moe", "qwen3_moe"):
        if fields.flag("use_sliding_window", False) and fields.get("sliding_window") is not None:
            raise ModelError(f"{fields.where}: use_sliding_window is not supported in {architecture.models}")
        return ()
    mistral = architecture.name == "mistral"
    used = mistral or fields.flag("use_sliding_window", False)
    present = fields.get("sliding_window") is not None
    missing = mistral and "sliding_window" not in fields.values
    window = fields.integer("sliding_window") if present else DEFAULT_WINDOW if missing else None
    slides = [used and window is not None] * layers
    if not mistral:
        first = fields.integer("max_window_layers", 28)
        slides = [slide and i >= first for i, slide in enumerate(slides)]
    named = _named_windows(fields, layers)
    if named is not None:
        if any(named) and not (used and window is not None):
            raise ModelError(
                f"{fields.where}: layer_types has layers with sliding attention, but the window is switched off"
            )
        if mistral and named != slides:
            raise ModelError(
                f"{fields.where}: layer_types of a Mistral must not differ from its sliding_window"
            )
        slides = named
    return tuple(window if slide else None for slide in slides) if any(slides) else ()


def _named_windows(fields: Fields, layers: int) -> list[bool] | None:
    """Which layers slide by ``layer_types``, None without it."""
    kinds = fields.get("layer_types")
    if kinds is None:
        return None
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
        raise fields.wrong("layer_types", kinds, f"one of {known} for each of {layers} layers")
    return [kind == "sliding_attention" for kind in kinds]


def _patterned_windows(fields: Fields, architecture: Architecture, layers: int) -> tuple[int | None, ...]:
    if "sliding_window" in fields.values and fields.get("sliding_window") is None:
        return ()
    window = fields.integer("sliding_window", DEFAULT_WINDOW)
    every = architecture.window_pattern
    if architecture.name == "gemma3":  # in two spellings
        for key in ("_sliding_window_pattern", "sliding_window_pattern"):
            every = fields.dimension(key, every)
    slides = _named_windows(fields, layers) or [(i + 1) % every != 0 for i in range(layers)]
    return tuple(window if slide else None for slide in slides) if any(slides) else ()
