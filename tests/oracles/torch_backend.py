"""A decoder in plain fp32 PyTorch, the oracle for every other backend."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from sonoran.backends.base import Rows
from sonoran.errors import ConfigError, NumericsError
from sonoran.models.config import ModelConfig
from sonoran.models.source import ModelFile
from sonoran.models.tensors import dequantize
from sonoran.types import FloatArray
from tests.oracles.row_contract import check_rows, extra_slots, trunk_slots


class TorchBackend:
    """One decoder, whatever its architecture, in fp32, with paged keys and values.

    ``batched=False`` runs every row through the same products alone, so that its logits do not depend on its
    neighbours, bit for bit; ``batched=True`` multiplies all rows at once: faster, and equal up to rounding.
    ``fp16_cache`` rounds keys and values to fp16 as they are written. ``activation_group`` rounds the input
    of every matrix product to 8-bit integers, symmetrically, per row and group of that many values; None
    leaves it in fp32. Each reproduces, in isolation, an approximation that fast backends make.

    In a layer with a sliding window W, a row at position p sees trunk positions above p - W and the last W extra slots.

    Raises ConfigError for impossible sizes.
    """

    def __init__(
        self,
        model_file: ModelFile,
        num_blocks: int,
        block_size: int,
        *,
        batched: bool = False,
        fp16_cache: bool = False,
        activation_group: int | None = None,
    ) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if activation_group is not None and activation_group < 1:
            raise ConfigError(f"activation_group must be at least 1, got {activation_group}")
        self._config: ModelConfig = model_file.config
        self._num_blocks, self._block_size = num_blocks, block_size
        self._batched, self._fp16_cache, self._group = batched, fp16_cache, activation_group
        self._weights: dict[str, Any] = {
            name: torch.from_numpy(dequantize(info)) for name, info in model_file.tensors.items()
        }
        self._frequencies = torch.tensor(inverse_frequencies(self._config), dtype=torch.float32)
        local = dataclasses.replace(
            self._config,
            rope_theta=self._config.window_rope_theta or self._config.rope_theta,
            rope_scaling=None,
        )
        self._window_frequencies = torch.tensor(inverse_frequencies(local), dtype=torch.float32)
        shape = (
            self._config.num_layers,
            num_blocks * block_size,
            self._config.num_kv_heads,
            self._config.head_dim,
        )
        self._keys = torch.zeros(shape)
        self._values = torch.zeros(shape)
        self._closed = False

    @property
    def config(self) -> ModelConfig:
        """Shape of the decoder."""
        return self._config

    @property
    def block_size(self) -> int:
        """KV slots per block."""
        return self._block_size

    @property
    def num_blocks(self) -> int:
        """Blocks of KV memory."""
        return self._num_blocks

    def forward(self, rows: Rows) -> FloatArray:
        """Run the rows; return logits ``[rows that want them, vocab_size]`` in row order."""
        if self._closed:
            raise ConfigError("the backend is closed")
        check_rows(rows, self._config.vocab_size, self._num_blocks, self._block_size)
        n = len(rows)
        groups = [list(range(n))] if self._batched and n else [[i] for i in range(n)]
        with torch.inference_mode():
            windows = {self._config.window(layer) for layer in range(self._config.num_layers)}
            visible = {
                w: [torch.tensor(self._visible(rows, i, w), dtype=torch.int64) for i in range(n)]
                for w in windows
            }
            scale = self._config.embedding_scale
            hidden = [self._weights["embed"][rows.tokens[group].tolist()] * scale for group in groups]
            for layer in range(self._config.num_layers):
                seen = visible[self._config.window(layer)]
                queries = [self._project(layer, x, rows, g) for x, g in zip(hidden, groups, strict=True)]
                hidden = [
                    self._mix(layer, x, q, [seen[i] for i in g])
                    for x, q, g in zip(hidden, queries, groups, strict=True)
                ]
            wanted = [[j for j, i in enumerate(g) if rows.wants_logits[i]] for g in groups]
            parts = [self._output(x[w]) for x, w in zip(hidden, wanted, strict=True) if w]
            logits = torch.cat(parts) if parts else torch.zeros(0, self._config.vocab_size)
        result: FloatArray = logits.numpy()
        bad = np.flatnonzero(~np.isfinite(result).all(axis=1))
        if len(bad):
            row = int(np.flatnonzero(rows.wants_logits)[bad[0]])
            raise NumericsError(
                f"row {row} (position {int(rows.positions[row])}) has logits that are not finite"
            )
        return result

    def copy_block(self, source: int, destination: int) -> None:
        """Copy the keys and values of one block."""
        for block in (source, destination):
            if not 0 <= block < self._num_blocks:
                raise ConfigError(f"block {block} is outside 0 to {self._num_blocks - 1}")
        size = self._block_size
        for cache in (self._keys, self._values):
            cache[:, destination * size : (destination + 1) * size] = cache[
                :, source * size : (source + 1) * size
            ]

    def close(self) -> None:
        """Free weights and KV memory; calling twice is harmless."""
        self._closed = True
        self._weights = {}
        self._keys = self._values = torch.zeros(0)

    def _visible(self, rows: Rows, row: int, window: int | None) -> list[int]:
        trunk, extra = trunk_slots(rows, row, self._block_size), extra_slots(rows, row)
        if window is not None:
            trunk = trunk[max(0, int(rows.positions[row]) - window + 1) :]
            extra = extra[max(0, len(extra) - window) :]
        return [*trunk.tolist(), *extra.tolist()]

    def _project(self, layer: int, x: Any, rows: Rows, group: list[int]) -> Any:
        """Write the rows' keys and values; return their queries ``[rows, num_heads, head_dim]``."""
        c, name = self._config, f"layers.{layer}."
        x = self._norm(x, name + "attn_norm")
        q = self._linear(x, name + "q", name + "q_bias")
        k = self._linear(x, name + "k", name + "k_bias")
        v = self._linear(x, name + "v", name + "v_bias").view(len(group), c.num_kv_heads, c.head_dim)
        if c.whole_qk_norm:
            q, k = self._norm(q, name + "q_norm"), self._norm(k, name + "k_norm")
        q, k = q.view(len(group), c.num_heads, c.head_dim), k.view(len(group), c.num_kv_heads, c.head_dim)
        if c.qk_norm and not c.whole_qk_norm:
            q, k = self._norm(q, name + "q_norm"), self._norm(k, name + "k_norm")
        if c.rotates(layer):
            positions = torch.tensor(rows.positions[group], dtype=torch.float32)
            q, k = self._rotate(layer, q, positions), self._rotate(layer, k, positions)
        if self._fp16_cache:
            k, v = k.half().float(), v.half().float()
        slots = rows.slots[group].tolist()
        self._keys[layer, slots] = k
        self._values[layer, slots] = v
        return q

    def _mix(self, layer: int, x: Any, queries: Any, visible: list[Any]) -> Any:
        """Attention and feed-forward, each added to the residual stream ``[rows, hidden_size]``."""
        name = f"layers.{layer}."
        attended = torch.stack(
            [self._attend(layer, q, slots) for q, slots in zip(queries, visible, strict=True)]
        )
        added = self._norm(self._linear(attended, name + "o", name + "o_bias"), name + "attn_post_norm")
        x = x + added * self._config.residual_scale
        y = self._norm(x, name + "ffn_norm")
        added = self._mlp(y, name) if self._config.experts is None else self._mixture(y, name)
        return x + self._norm(added, name + "ffn_post_norm") * self._config.residual_scale

    def _mlp(self, x: Any, name: str) -> Any:
        gate, up = self._linear(x, name + "gate"), self._linear(x, name + "up")
        if self._config.activation == "silu":
            passed = torch.nn.functional.silu(gate)
        else:
            passed = torch.nn.functional.gelu(gate, approximate="tanh")
        return self._linear(passed * up, name + "down")

    def _mixture(self, x: Any, name: str) -> Any:
        """The weighted sum of the experts that the router chooses for each row, and of the shared one."""
        experts = self._config.experts
        assert experts is not None
        chances, chosen = self._linear(x, name + "router").softmax(-1).topk(experts.per_token, dim=-1)
        if experts.normalized:
            chances = chances / chances.sum(-1, keepdim=True)
        rows = []
        for i in range(len(x)):
            outputs = [self._mlp(x[i : i + 1], f"{name}experts.{j}.")[0] for j in chosen[i].tolist()]
            rows.append(sum(share * output for share, output in zip(chances[i], outputs, strict=True)))
        mixed = torch.stack(rows)
        if experts.shared_size:
            gate = (x @ self._weights[name + "shared_router"]).sigmoid()
            mixed = mixed + gate[:, None] * self._mlp(x, name + "shared_")
        return mixed

    def _attend(self, layer: int, query: Any, slots: Any) -> Any:
        """Softmax attention of one query ``[num_heads, head_dim]`` over the given slots."""
        c = self._config
        keys, values = self._keys[layer, slots], self._values[layer, slots]
        grouped = query.reshape(c.num_kv_heads, c.group_size, c.head_dim)
        scores = torch.einsum("kgd,tkd->kgt", grouped, keys) * (c.attention_scale or c.head_dim**-0.5)
        scores = self._cap(scores, c.attention_softcap)
        return torch.einsum("kgt,tkd->kgd", scores.softmax(-1), values).reshape(-1)

    def _output(self, x: Any) -> Any:
        logits = self._linear(
            self._norm(x, "final_norm"), "embed" if self._config.tied_embeddings else "output"
        )
        return self._cap(logits * self._config.logit_scale, self._config.logit_softcap)

    def _cap(self, x: Any, cap: float | None) -> Any:
        return x if cap is None else (x / cap).tanh() * cap

    def _norm(self, x: Any, name: str) -> Any:
        """RMS normalisation over the last dimension; nothing where the model has no such norm."""
        if name not in self._weights:
            return x
        scale = (x.pow(2).mean(-1, keepdim=True) + self._config.norm_epsilon).rsqrt()
        return x * scale * self._weights[name]

    def _linear(self, x: Any, name: str, bias: str | None = None) -> Any:
        if self._group is not None:
            x = self._round(x, self._group)
        y = x @ self._weights[name].T
        return y + self._weights[bias] if bias in self._weights else y

    def _round(self, x: Any, group: int) -> Any:
        """Round to 127 symmetric steps of each group's largest magnitude along the last dimension."""
        parts = []
        for part in x.split(group, dim=-1):
            step = part.abs().amax(-1, keepdim=True) / 127
            parts.append((part / step.clamp(min=1e-30)).round() * step)
        return torch.cat(parts, dim=-1)

    def _rotate(self, layer: int, x: Any, positions: Any) -> Any:
        """RoPE on ``x [rows, heads, head_dim]``."""
        local = self._config.has_window_rope(layer)
        angles = (positions[:, None] * (self._window_frequencies if local else self._frequencies))[:, None, :]
        scaling = None if local else self._config.rope_scaling
        factor = scaling.attention_factor if scaling else 1.0
        cos, sin = angles.cos() * factor, angles.sin() * factor
        x, rest = x[..., : self._config.rotated], x[..., self._config.rotated :]
        if self._config.rope_interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        else:
            a, b = x.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        return torch.cat((turned, rest), dim=-1)


def inverse_frequencies(config: ModelConfig) -> FloatArray:
    """Angle per position of each of the rotated pairs; scaling divides each by its factor."""
    pairs = np.arange(0, config.rotated, 2, dtype=np.float64)
    frequencies = config.rope_theta ** (-pairs / config.rotated)
    if config.rope_scaling is not None:
        frequencies = frequencies / np.array(config.rope_scaling.factors)
    return frequencies.astype(np.float32)
