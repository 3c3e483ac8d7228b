"""From a Hugging Face ``config.json`` to a configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from sonoran.errors import ModelError
from sonoran.models.config import ModelConfig, RopeScaling
from sonoran.models.untrusted import Fields, read_json, shown

CLASSES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
MISTRAL_WINDOW = 4096
ROPE_KINDS = ("default", "linear", "llama3", "yarn")


def read_hf_config(path: Path) -> ModelConfig:
    """Read ``config.json``. Raises ModelError for architectures and options the decoder does not have."""
    fields = Fields(path, read_json(path))
    architecture = _architecture(fields)
    _refuse_unsupported(fields)
    heads = fields.dimension("num_attention_heads")
    hidden = fields.dimension("hidden_size")
    head_dim = fields.dimension("head_dim", 128 if architecture == "qwen3" else hidden // heads)
    layers = fields.dimension("num_hidden_layers")
    bias = architecture in ("llama", "qwen3") and fields.flag("attention_bias", False)
    # Only Llama's default is one key/value head per query head.
    may_lack = architecture == "llama" or "num_key_value_heads" in fields.values
    theta, scaling = _rope(fields, head_dim)
    return ModelConfig(
        architecture=architecture,
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
        attention_bias=architecture == "qwen2" or bias,
        output_bias=bias,
        qk_norm=architecture == "qwen3",
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        sliding_windows=_sliding_windows(fields, architecture, layers),
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


def _architecture(fields: Fields) -> str:
    names = fields.get("architectures")
    if isinstance(names, list) and names:
        name = str(names[0])
        if name not in CLASSES:
            raise ModelError(
                f"{fields.where}: architecture {shown(name)} is not supported; supported: {', '.join(CLASSES)}"
            )
        return CLASSES[name]
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in CLASSES.values():
        raise ModelError(
            f"{fields.where}: model_type {shown(kind)} is not supported; supported: {', '.join(CLASSES.values())}"
        )
    return kind


def _refuse_unsupported(fields: Fields) -> None:
    method = fields.get("quantization_config")
    if method is not None:
        kind = method.get("quant_method") if isinstance(method, dict) else method
        raise ModelError(
            f"{fields.where}: weights quantised by {shown(kind)} are not supported; use F32, F16, BF16 or a GGUF"
        )
    if fields.get("hidden_act") not in (None, "silu"):
        raise fields.wrong("hidden_act", fields.get("hidden_act"), "'silu', the only one supported")
    if fields.flag("mlp_bias", False):
        raise ModelError(f"{fields.where}: mlp_bias is not supported")


def _rope(fields: Fields, head_dim: int) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from the older spelling (rope_theta, rope_scaling) or the newer (rope_parameters)."""
    name = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    values = fields.get(name) or {}
    if not isinstance(values, dict):
        raise fields.wrong(name, values, "an object")
    nested = next((key for key, value in values.items() if isinstance(value, dict)), None)
    if nested is not None:
        raise ModelError(f"{fields.where}: {name} of its own for {shown(nested)} is not supported")
    outside = fields.get("original_max_position_embeddings")  # where it stands, it counts
    values = values | ({} if outside is None else {"original_max_position_embeddings": outside})
    rope = Fields(f"{fields.where}: {name}", values)
    for place in (fields, rope):
        if place.number("partial_rotary_factor", 1.0) != 1.0:
            raise place.wrong("partial_rotary_factor", place.get("partial_rotary_factor"), "1.0, whole heads")
    theta = (rope if "rope_theta" in values else fields).positive("rope_theta", 10000.0)
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, linear_scaling(rope.positive("factor"), head_dim)
    if kind == "llama3":
        needed = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        numbers = {key: rope.positive(key) for key in needed}
        if numbers["high_freq_factor"] <= numbers["low_freq_factor"]:
            raise rope.wrong("high_freq_factor", numbers["high_freq_factor"], "more than low_freq_factor")
        return theta, RopeScaling(llama3_factors(numbers, theta, head_dim))
    if kind == "yarn":
        return theta, _yarn(rope, theta, head_dim, fields.positive("max_position_embeddings"))
    raise ModelError(
        f"{fields.where}: RoPE scaling {shown(kind)} is not supported; "
        f"supported: {', '.join(map(repr, ROPE_KINDS))}"
    )


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


def _sliding_windows(fields: Fields, architecture: str, layers: int) -> tuple[int | None, ...]:
    """The window of each layer, as transformers' model code reads it; empty when no layer has one.

    Llama has none whatever the file says, Mistral the same in all layers (unless the file says null), Qwen
    only with ``use_sliding_window``: in the layers of ``layer_types``, or from ``max_window_layers`` on.
    """
    if architecture == "llama":
        return ()
    mistral = architecture == "mistral"
    used = mistral or fields.flag("use_sliding_window", False)
    present = fields.get("sliding_window") is not None
    missing = mistral and "sliding_window" not in fields.values
    window = fields.integer("sliding_window") if present else MISTRAL_WINDOW if missing else None
    slides = [used and window is not None] * layers
    if not mistral:
        first = fields.integer("max_window_layers", 28)
        slides = [slide and i >= first for i, slide in enumerate(slides)]
    kinds = fields.get("layer_types")
    if kinds is not None:
        known = ("full_attention", "sliding_attention")
        if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
            raise fields.wrong("layer_types", kinds, f"one of {known} for each of {layers} layers")
        named = [kind == "sliding_attention" for kind in kinds]
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
