"""A decoder in PyTorch over tiles of 16 rows: every product, norm and sum has one shape, whatever the batch.

Within one kernel of one shape all rows are summed alike ("shape-consistent reductions", arXiv 2601.17768), so that a
row's bits do not depend on its company. Attention reads keys in chunks of 128 positions and merges the chunks in order,
in fp32; a chunk of which a row sees nothing changes no bit of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sonoran.backends.torch.devices import import_torch
from sonoran.backends.torch.rows import CHUNK, TILE
from sonoran.models.config import ModelConfig

_LOWEST = -1e30  # of a score: below every real one, and still a number


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """``PackedRows`` as tensors on the device."""

    tokens: Any
    slots: Any
    visible: Any
    lengths: Any
    trunks: Any
    positions: Any
    angles: tuple[Any, ...]
    wanted: Any


class Decoder:
    """Layers over weights and KV memory on one device; keys and values are fp16, sums fp32. It knows no blocks."""

    def __init__(self, config: ModelConfig, weights: dict[str, Any], slots: int, device: Any) -> None:
        torch = self._torch = import_torch()
        self.config, self.weights = config, weights
        self.dtype = weights["embed"].dtype
        self.output = weights["embed" if config.tied_embeddings else "output"]
        shape = (config.num_layers, slots, config.num_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, dtype=torch.float16, device=device)
        self.values = torch.zeros(shape, dtype=torch.float16, device=device)
        self._in_chunk = torch.arange(CHUNK, device=device)

    def run(self, rows: DeviceRows) -> Any:
        """Return logits of the wanted rows and of what pads them, fp32 ``[len(wanted), outputs]``."""
        whole = self.write(rows)[rows.wanted]
        return self._torch.cat([self._logits(x) for x in whole.split(TILE)])

    def write(self, rows: DeviceRows) -> Any:
        """Write keys and values of all rows; return the last residual stream ``[rows, hidden_size]``."""
        tiles = range(len(rows.tokens) // TILE)
        spans = [slice(t * TILE, (t + 1) * TILE) for t in tiles]
        scale = self.config.embedding_scale
        hidden = [self.weights["embed"][rows.tokens[span]].float() * scale for span in spans]
        for layer in range(self.config.num_layers):
            # All rows write before any of them reads.
            queries = [self._project(layer, x, rows, span) for x, span in zip(hidden, spans, strict=True)]
            hidden = [
                self._mix(layer, x, q, rows, span) for x, q, span in zip(hidden, queries, spans, strict=True)
            ]
        return self._torch.cat(hidden)

    def _project(self, layer: int, x: Any, rows: DeviceRows, span: slice) -> Any:
        """Write the keys and values of a tile; return its queries ``[TILE, heads, head_dim]``."""
        c, name = self.config, f"layers.{layer}."
        both = self._linear(self._norm(x, name + "attn_norm"), name + "qkv")
        queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        q, k, v = both[:, :queries], both[:, queries : queries + keys], both[:, queries + keys :]
        if c.whole_qk_norm:
            q, k = self._norm(q, name + "q_norm"), self._norm(k, name + "k_norm")
        q, k = q.reshape(TILE, c.num_heads, -1), k.reshape(TILE, c.num_kv_heads, -1)
        if c.qk_norm and not c.whole_qk_norm:
            q, k = self._norm(q, name + "q_norm"), self._norm(k, name + "k_norm")
        if c.rotates(layer):
            angles = rows.angles[int(c.has_window_rope(layer))][:, span, None, :]
            q, k = self._rotate(q, angles), self._rotate(k, angles)
        slots = rows.slots[span]
        self.keys[layer].index_copy_(0, slots, k.to(self.keys.dtype))
        self.values[layer].index_copy_(0, slots, v.reshape(k.shape).to(self.values.dtype))
        return q

    def _mix(self, layer: int, x: Any, queries: Any, rows: DeviceRows, span: slice) -> Any:
        """Attention and feed-forward of a tile, each added to its residual stream ``[TILE, hidden_size]``."""
        c, name = self.config, f"layers.{layer}."
        added = self._linear(self._attend(layer, queries, rows, span), name + "o")
        x = x + self._norm(added, name + "attn_post_norm") * c.residual_scale
        gate, up = self._linear(self._norm(x, name + "ffn_norm"), name + "gate_up").chunk(2, dim=-1)
        functional = self._torch.nn.functional
        passed = (
            functional.silu(gate) if c.activation == "silu" else functional.gelu(gate, approximate="tanh")
        )
        added = self._linear(passed * up, name + "down")
        return x + self._norm(added, name + "ffn_post_norm") * c.residual_scale

    def _attend(self, layer: int, queries: Any, rows: DeviceRows, span: slice) -> Any:
        """Softmax attention of a tile over the slots that each of its rows sees; ``[TILE, heads * head_dim]``."""
        torch, c = self._torch, self.config
        grouped = queries.reshape(TILE * c.num_kv_heads, c.group_size, c.head_dim)
        scale = c.attention_scale or c.head_dim**-0.5
        best = torch.full((TILE * c.num_kv_heads, c.group_size, 1), _LOWEST, device=queries.device)
        total = torch.zeros_like(best)
        mixed = torch.zeros_like(grouped)
        for chunk in range(rows.visible.shape[1] // CHUNK):
            slots = rows.visible[span, chunk * CHUNK : (chunk + 1) * CHUNK].reshape(-1)

            def gathered(memory: Any, slots: Any = slots) -> Any:
                found = memory[layer].index_select(0, slots).float()
                found = found.reshape(TILE, CHUNK, c.num_kv_heads, c.head_dim).transpose(1, 2)
                return found.reshape(TILE * c.num_kv_heads, CHUNK, c.head_dim)

            scores = torch.bmm(grouped, gathered(self.keys).transpose(1, 2)) * scale
            if c.attention_softcap is not None:
                scores = (scores / c.attention_softcap).tanh() * c.attention_softcap
            seen = self._seen(layer, chunk, rows, span)[:, None, None, :]
            scores = scores.reshape(TILE, c.num_kv_heads, c.group_size, CHUNK)
            scores = scores.masked_fill(~seen, -torch.inf).reshape(*grouped.shape[:2], CHUNK)
            highest = scores.amax(-1, keepdim=True).clamp(min=_LOWEST)
            shares = (scores - highest).exp()
            above = torch.maximum(best, highest)
            # One call for both, so that their number is even, see weights.
            old, new = torch.cat([best - above, highest - above], -1).exp().chunk(2, dim=-1)
            total = total * old + shares.sum(-1, keepdim=True) * new
            mixed = mixed * old + torch.bmm(shares, gathered(self.values)) * new
            best = above
        return (mixed / total).reshape(TILE, -1)

    def _seen(self, layer: int, chunk: int, rows: DeviceRows, span: slice) -> Any:
        """Whether each row of a tile sees each slot of a chunk, ``[TILE, CHUNK]``."""
        at = self._in_chunk + chunk * CHUNK
        lengths, trunks = rows.lengths[span, None], rows.trunks[span, None]
        seen = at < lengths
        window = self.config.window(layer)
        if window is not None:  # trunk positions above p - window, and the last of the branch
            first = rows.positions[span, None] - window
            seen = seen & self._torch.where(at < trunks, at > first, at >= lengths - window)
        return seen

    def _logits(self, x: Any) -> Any:
        """Logits of a tile, fp32 ``[TILE, outputs]``; the output matrix may have been cut to some tokens."""
        c = self.config
        x = self._norm(x, "final_norm").to(self.dtype)
        logits = self._torch.nn.functional.linear(x, self.output).float() * c.logit_scale
        if c.logit_softcap is not None:
            logits = (logits / c.logit_softcap).tanh() * c.logit_softcap
        return logits

    def _linear(self, x: Any, name: str) -> Any:
        y = self._torch.nn.functional.linear(x.to(self.dtype), self.weights[name]).float()
        bias = self.weights.get(name + "_bias")
        return y if bias is None else y + bias

    def _norm(self, x: Any, name: str) -> Any:
        """RMS normalisation over the last dimension; nothing where the model has no such norm."""
        weight = self.weights.get(name)
        if weight is None:
            return x
        return x * (x.pow(2).mean(-1, keepdim=True) + self.config.norm_epsilon).rsqrt() * weight

    def _rotate(self, x: Any, angles: Any) -> Any:
        """RoPE on ``x [TILE, heads, head_dim]`` by cosines and sines ``[2, TILE, 1, pairs]``."""
        torch, (cos, sin) = self._torch, angles
        x, rest = x[..., : self.config.rotated], x[..., self.config.rotated :]
        if self.config.rope_interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        else:
            a, b = x.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        return torch.cat((turned, rest), dim=-1)
