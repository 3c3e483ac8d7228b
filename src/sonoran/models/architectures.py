"""The architectures that load, and what sets each apart: the one table of them.

A decoder is described by data (ModelConfig). What a file does not say, because transformers or llama.cpp know it by
the architecture's name, is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sonoran.models.config import Activation, Norms


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row of the table. Names of tensors map those of a layer to canonical ones, beside the common names."""

    name: str  # transformers' model_type, except where that names a part of a model
    models: str  # what people call them
    hf_class: str
    gguf: str  # general.architecture
    norms: Norms = "before"
    activation: Activation = "silu"
    qk_norm: Literal["", "head", "whole"] = ""
    qkv_bias: bool = False  # always, whatever a config says
    interleaved: bool = False  # pairs of rotated elements in GGUF files; elsewhere (i, i + half)
    unit_norms: bool = False  # directories store norms less 1, GGUF files as they are
    tied: bool = False  # the default of tie_word_embeddings
    theta: float = 10000.0  # the default of rope_theta in directories
    window_pattern: int = 0  # every n-th layer sees everything, the others a window; 0: no such pattern
    local_theta: float | None = (
        None  # the default base of the layers with a window, where they have their own
    )
    unscaled_windows: bool = False  # the layers with a window rotate without the RoPE scaling of the others
    whole_yarn_factor: bool = (
        False  # in GGUF files attn_factor is YaRN's whole factor, elsewhere one beside it
    )
    hf_tensors: Mapping[str, str] = field(default_factory=dict)
    gguf_tensors: Mapping[str, str] = field(default_factory=dict)
    gguf_keys: frozenset[str] = frozenset()  # beyond those that all have
    model_types: tuple[str, ...] = ()  # other spellings of model_type
    wholes: tuple[str, ...] = ()  # classes of models with images of which this is the text part
    part_defaults: Mapping[str, int | float] = field(default_factory=dict)  # what text_config may leave out

    @property
    def has_experts(self) -> bool:
        """True where a router chooses among feed-forward networks."""
        return "expert_count" in self.gguf_keys


_AROUND_HF = {
    "post_attention_layernorm.weight": "attn_post_norm",
    "pre_feedforward_layernorm.weight": "ffn_norm",
    "post_feedforward_layernorm.weight": "ffn_post_norm",
}
_BEHIND_HF = {
    "post_attention_layernorm.weight": "attn_post_norm",
    "post_feedforward_layernorm.weight": "ffn_post_norm",
}
_POST_GGUF = {"post_attention_norm.weight": "attn_post_norm", "post_ffw_norm.weight": "ffn_post_norm"}
_WINDOW = frozenset({"attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"})
_CAPS = frozenset({"attn_logit_softcapping", "final_logit_softcapping"})
_EXPERTS = frozenset(
    {
        "expert_count",
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
        "expert_used_count",
        "expert_weights_norm",
    }
)
_EXPERTS_GGUF = {
    "ffn_gate_inp.weight": "router",
    **{f"ffn_{name}_exps.weight": f"{name}_exps" for name in ("gate", "up", "down")},
}
_EXPERTS_HF = {"mlp.gate.weight": "router"}

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(
        "llama",
        "Llama 2 and 3, DeepSeek R1 distills of Llama, Falcon 3, Hermes, SmolLM2, TinyLlama",
        "LlamaForCausalLM",
        "llama",
        interleaved=True,
    ),
    Architecture(
        "mistral",
        "Mistral 7B, Nemo, Small (as GGUF under llama)",
        "MistralForCausalLM",
        "llama",
        interleaved=True,
        wholes=("Mistral3ForConditionalGeneration",),
    ),
    Architecture(
        "qwen2",
        "Qwen2, Qwen2.5, Qwen2.5-Coder, DeepSeek R1 distills of Qwen",
        "Qwen2ForCausalLM",
        "qwen2",
        qkv_bias=True,
    ),
    Architecture("qwen3", "Qwen3 (dense), DeepSeek R1 0528", "Qwen3ForCausalLM", "qwen3", qk_norm="head"),
    Architecture(
        "gemma2",
        "Gemma 2",
        "Gemma2ForCausalLM",
        "gemma2",
        norms="around",
        activation="gelu_tanh",
        unit_norms=True,
        tied=True,
        window_pattern=2,
        hf_tensors=_AROUND_HF,
        gguf_tensors=_POST_GGUF,
        gguf_keys=_WINDOW | _CAPS,
    ),
    Architecture(
        "gemma3",
        "Gemma 3 (text)",
        "Gemma3ForCausalLM",
        "gemma3",
        norms="around",
        activation="gelu_tanh",
        qk_norm="head",
        unit_norms=True,
        tied=True,
        theta=1e6,
        window_pattern=6,
        local_theta=10000.0,
        unscaled_windows=True,
        hf_tensors=_AROUND_HF,
        gguf_tensors=_POST_GGUF,
        gguf_keys=_WINDOW | _CAPS,
        model_types=("gemma3_text",),
        wholes=("Gemma3ForConditionalGeneration",),
        part_defaults={
            "vocab_size": 262208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
        },
    ),
    Architecture(
        "phi3",
        "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
        "Phi3ForCausalLM",
        "phi3",
        hf_tensors={"self_attn.qkv_proj.weight": "qkv", "mlp.gate_up_proj.weight": "gate_up"},
        gguf_tensors={"attn_qkv.weight": "qkv", "ffn_up.weight": "gate_up"},
        gguf_keys=frozenset({"attention.sliding_window", "rope.dimension_count"}),
    ),
    Architecture(
        "granite",
        "Granite 3 (dense)",
        "GraniteForCausalLM",
        "granite",
        interleaved=True,
        gguf_keys=frozenset(
            {"attention.scale", "embedding_scale", "logit_scale", "residual_scale", "rope.scaling.finetuned"}
        ),
    ),
    Architecture(
        "smollm3", "SmolLM3", "SmolLM3ForCausalLM", "smollm3", interleaved=True, tied=True, theta=2e6
    ),
    Architecture(
        "olmo2",
        "OLMo 2",
        "Olmo2ForCausalLM",
        "olmo2",
        norms="behind",
        qk_norm="whole",
        hf_tensors=_BEHIND_HF,
        gguf_tensors=_POST_GGUF,
    ),
    Architecture(
        "olmo3",
        "OLMo 3",
        "Olmo3ForCausalLM",
        "olmo2",
        norms="behind",
        qk_norm="whole",
        theta=500000.0,
        window_pattern=4,
        unscaled_windows=True,
        whole_yarn_factor=True,
        hf_tensors=_BEHIND_HF,
        gguf_tensors=_POST_GGUF,
        gguf_keys=_WINDOW,
    ),
    Architecture(
        "qwen2_moe",
        "Qwen1.5-MoE, Qwen2-57B-A14B",
        "Qwen2MoeForCausalLM",
        "qwen2moe",
        qkv_bias=True,
        hf_tensors=_EXPERTS_HF
        | {
            "mlp.shared_expert_gate.weight": "shared_router",
            **{f"mlp.shared_expert.{name}_proj.weight": f"shared_{name}" for name in ("gate", "up", "down")},
        },
        gguf_tensors=_EXPERTS_GGUF
        | {
            "ffn_gate_inp_shexp.weight": "shared_router",
            **{f"ffn_{name}_shexp.weight": f"shared_{name}" for name in ("gate", "up", "down")},
        },
        gguf_keys=_EXPERTS,
    ),
    Architecture(
        "qwen3_moe",
        "Qwen3-30B-A3B and relatives",
        "Qwen3MoeForCausalLM",
        "qwen3moe",
        qk_norm="head",
        hf_tensors=_EXPERTS_HF,
        gguf_tensors=_EXPERTS_GGUF,
        gguf_keys=_EXPERTS,
    ),
)

REFUSED = {
    "gpt-oss": "gpt-oss: attention sinks, clamped experts with biases and MXFP4 weights",
    "gpt_oss": "gpt-oss: attention sinks, clamped experts with biases and MXFP4 weights",
    "qwen35": "Qwen3.5: three of four layers are linear attention (gated delta net) with a recurrent state",
    "qwen35moe": "Qwen3.5: three of four layers are linear attention (gated delta net) with a recurrent state",
    "qwen3_5": "Qwen3.5: three of four layers are linear attention (gated delta net) with a recurrent state",
    "qwen3_next": "Qwen3-Next: three of four layers are linear attention (gated delta net) with a recurrent state",
    "qwen3next": "Qwen3-Next: three of four layers are linear attention (gated delta net) with a recurrent state",
    "gemma3n": "Gemma 3n: per-layer embeddings and alternating updates",
    "gemma4": "Gemma 4: per-layer embeddings and layers that share keys and values",
    "lfm2": "LFM2: convolutions between attention layers",
    "granitehybrid": "Granite 4: most layers are Mamba-2, with a recurrent state",
}
"""What well-known models have that this decoder has not, by general.architecture or model_type."""

# GGUF files do not tell Mistral from Llama, nor need to; OLMo 3 is told from OLMo 2 by its windows.
BY_GGUF = {row.gguf: row for row in ARCHITECTURES if row.name not in ("mistral", "olmo2")}
BY_CLASS = {row.hf_class: row for row in ARCHITECTURES}
BY_WHOLE = {name: row for row in ARCHITECTURES for name in row.wholes}
BY_TYPE = {kind: row for row in ARCHITECTURES for kind in (row.name, *row.model_types)}
