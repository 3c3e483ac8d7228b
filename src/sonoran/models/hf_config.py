"""From a Hugging Face ``config.json`` to a configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sonoran.errors import ModelError, nearest
from sonoran.models.config import ModelConfig, RopeScaling

CLASSES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
MISTRAL_WINDOW = 4096


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; ModelError when the file is missing, damaged or something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: holds a {type(value).__name__}, expected an object")
    return value


def read_hf_config(path: Path) -> ModelConfig:
    """Read ``config.json``. Raises ModelError for architectures and options the decoder does not have."""
    fields = _Fields(path)
    architecture = _architecture(fields)
    _refuse_unsupported(fields)
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    if heads < 1:
        raise ModelError(f"{path}: num_attention_heads is {heads}")
    head_dim = fields.integer("head_dim", 128 if architecture == "qwen3" else hidden // heads)
    layers = fields.integer("num_hidden_layers")
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
        max_position=fields.integer("max_position_embeddings"),
        rope_theta=theta,
        norm_epsilon=fields.number("rms_norm_eps"),
        rope_interleaved=False,
        rope_scaling=scaling,
        attention_bias=architecture == "qwen2" or bias,
        output_bias=bias,
        qk_norm=architecture == "qwen3",
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        sliding_window=_sliding_window(fields, architecture, layers),
    )


def llama3_factors(parameters: Mapping[str, Any], theta: float, head_dim: int) -> tuple[float, ...]:
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


class _Fields:
    """Typed access to config.json; errors name the key. A null counts as missing, as in transformers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values = read_json(path)

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, value, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(key, value, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def wrong(self, key: str, value: Any, expected: str) -> ModelError:
        found = "missing" if value is None else repr(value)
        return ModelError(f"{self.path}: {key} is {found}, expected {expected}")


def _architecture(fields: _Fields) -> str:
    names = fields.get("architectures")
    if isinstance(names, list) and names:
        name = str(names[0])
        if name not in CLASSES:
            raise ModelError(f"{fields.path}: architecture {name!r} is not supported{nearest(name, CLASSES)}")
        return CLASSES[name]
    kind = str(fields.get("model_type"))
    if kind not in CLASSES.values():
        raise ModelError(
            f"{fields.path}: model_type {kind!r} is not supported{nearest(kind, CLASSES.values())}"
        )
    return kind


def _refuse_unsupported(fields: _Fields) -> None:
    if fields.get("quantization_config") is not None:
        method = fields.get("quantization_config")
        kind = method.get("quant_method") if isinstance(method, dict) else method
        raise ModelError(
            f"{fields.path}: weights quantised by {kind!r} are not supported; use F32, F16, BF16 or a GGUF"
        )
    if fields.get("hidden_act") not in (None, "silu"):
        raise ModelError(
            f"{fields.path}: hidden_act {fields.get('hidden_act')!r} is not supported, only 'silu'"
        )
    if fields.flag("mlp_bias", False):
        raise ModelError(f"{fields.path}: mlp_bias is not supported")
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(
            f"{fields.path}: partial_rotary_factor {fields.get('partial_rotary_factor')} is not supported"
        )


def _rope(fields: _Fields, head_dim: int) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from the older spelling (rope_theta, rope_scaling) or the newer (rope_parameters)."""
    parameters = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise fields.wrong("rope_parameters", parameters, "an object")
    theta = parameters.get("rope_theta", fields.number("rope_theta", 10000.0))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ModelError(
            f"{fields.path}: RoPE scaling {kind!r} is not supported; supported: 'default', 'llama3'"
        )
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(
            f"{fields.path}: partial_rotary_factor {parameters['partial_rotary_factor']} is not supported"
        )
    needed = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    for key, value in [
        ("rope_theta", theta),
        *((key, parameters.get(key)) for key in needed if kind == "llama3"),
    ]:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise fields.wrong(key, value, "a positive number")
    if kind == "default":
        return float(theta), None
    if parameters["high_freq_factor"] <= parameters["low_freq_factor"]:
        raise fields.wrong("high_freq_factor", parameters["high_freq_factor"], "more than low_freq_factor")
    return float(theta), RopeScaling(llama3_factors(parameters, float(theta), head_dim))


def _sliding_window(fields: _Fields, architecture: str, layers: int) -> int | None:
    """The window, when any layer uses one; Mistral has one unless the file says null."""
    if architecture == "mistral" and "sliding_window" not in fields.values:
        return MISTRAL_WINDOW
    if fields.get("sliding_window") is None or architecture == "llama":
        return None
    window = fields.integer("sliding_window")
    kinds = fields.get("layer_types")
    if isinstance(kinds, list):
        return window if "sliding_attention" in kinds else None
    if architecture == "mistral":
        return window
    used = fields.flag("use_sliding_window", False) and fields.integer("max_window_layers", 28) < layers
    return window if used else None
