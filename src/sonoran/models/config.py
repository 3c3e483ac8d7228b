"""Shape of a decoder, the same whatever file it was read from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Any rule that gives every frequency its divisor: linear, ``llama3``, YaRN."""

    factors: tuple[float, ...]  # one for each pair of the rotated part of a head
    attention_factor: float = 1.0  # rotated queries and keys are multiplied by it (YaRN)
    context: int | None = None  # positions that the scaling reaches, where the rule says so


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder, configured: Llama, Mistral, Qwen2, Qwen3, SmolLM2 differ only in these values."""

    architecture: str  # llama | mistral | qwen2 | qwen3
    vocab_size: int  # rows of the output matrix, padding included
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int  # trained context length
    rope_theta: float
    norm_epsilon: float
    rope_interleaved: bool  # pairs (2i, 2i+1) as in GGUF files of Llama; otherwise (i, i + head_dim / 2)
    rope_scaling: RopeScaling | None = None
    attention_bias: bool = False  # bias on q, k, v
    output_bias: bool = False  # bias on the attention output projection
    qk_norm: bool = False
    tied_embeddings: bool = False
    sliding_windows: tuple[
        int | None, ...
    ] = ()  # of each layer, None: it sees everything; empty: no layer has one

    def window(self, layer: int) -> int | None:
        """Positions that a layer sees, its own included; None: all."""
        return self.sliding_windows[layer] if self.sliding_windows else None

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads
