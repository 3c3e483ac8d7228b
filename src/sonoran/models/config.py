"""Shape of a decoder, the same whatever file it was read from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Norms = Literal["before", "around", "behind"]
"""Where the norms of a sublayer (attention, feed-forward) stand."""
Activation = Literal["silu", "gelu_tanh"]
"""What the gate of a feed-forward network passes."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Any rule that gives every frequency its divisor: linear, ``llama3``, YaRN."""

    factors: tuple[float, ...]  # one for each pair of the rotated part of a head
    attention_factor: float = 1.0  # rotated queries and keys are multiplied by it (YaRN)
    context: int | None = None  # positions that the scaling reaches, where the rule says so


@dataclass(frozen=True, slots=True)
class Experts:
    """Feed-forward networks of which a router chooses some for every token, by softmax over all of them."""

    count: int
    per_token: int
    intermediate_size: int
    normalized: bool  # the chances of those chosen are divided by their sum
    shared_size: int = 0  # inner width of the one that every token passes, behind a gate of its own; 0: none


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder, configured: the rows of ``architectures.ARCHITECTURES`` differ only in these values."""

    architecture: str  # a name of architectures.ARCHITECTURES
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
    whole_qk_norm: bool = False  # over all heads at once, otherwise over each
    tied_embeddings: bool = False
    sliding_windows: tuple[
        int | None, ...
    ] = ()  # of each layer, None: it sees everything; empty: no layer has one
    norms: Norms = "before"
    activation: Activation = "silu"
    rotary_dim: int | None = None  # elements of a head that are rotated, the first ones; None: all
    window_rope_theta: float | None = None  # unscaled base of layers with a window; None: as the others
    rotated_layers: tuple[bool, ...] = ()  # empty: all
    long_rope_scaling: RopeScaling | None = None  # instead, for contexts beyond rope_scaling.context
    embedding_scale: float = 1.0
    attention_scale: float | None = None  # of scores; None: 1 / sqrt(head_dim)
    residual_scale: float = 1.0  # of what a sublayer adds
    logit_scale: float = 1.0
    attention_softcap: float | None = None  # scores become c tanh(score / c)
    logit_softcap: float | None = None
    experts: Experts | None = None

    def window(self, layer: int) -> int | None:
        """Positions that a layer sees, its own included; None: all."""
        return self.sliding_windows[layer] if self.sliding_windows else None

    @property
    def rotated(self) -> int:
        """Elements of a head that are rotated."""
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    def rotates(self, layer: int) -> bool:
        """Whether a layer knows positions."""
        return not self.rotated_layers or self.rotated_layers[layer]

    def has_window_rope(self, layer: int) -> bool:
        """Whether a layer rotates by ``window_rope_theta``."""
        return self.window_rope_theta is not None and self.window(layer) is not None

    def for_context(self, length: int) -> ModelConfig:
        """Return the configuration for texts of at most ``length`` tokens: LongRoPE has factors for short and long."""
        scaling, long = self.rope_scaling, self.long_rope_scaling
        if scaling is None or long is None or scaling.context is None or length <= scaling.context:
            return self
        return replace(self, rope_scaling=long, long_rope_scaling=None)

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads
