"""A Llama-family decoder whose attention is handed in, so that learner and engine run the same code."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toolwright.models.norm import rms_norm

# (layer, q [tokens, heads, dim], k [tokens, kv_heads, dim], v) -> [tokens, heads, dim]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    """All that distinguishes one member of the family from another."""

    vocab: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    context: int
    head_dim: int
    tied: bool = True
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    family: str = "llama"
    extra: dict[str, Any] = field(
        default_factory=dict
    )  # keys of the original configuration to keep on saving


class Layer(nn.Module):
    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        self.index = index
        self.shape = shape
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.attention_norm = nn.Parameter(torch.ones(shape.width))
        self.qkv = nn.Linear(shape.width, q + 2 * kv, bias=shape.qkv_bias)
        self.out = nn.Linear(q, shape.width, bias=False)
        self.ffn_norm = nn.Parameter(torch.ones(shape.width))
        self.gate_up = nn.Linear(shape.width, 2 * shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.width, bias=False)
        if shape.qk_norm:
            self.q_norm = nn.Parameter(torch.ones(shape.head_dim))
            self.k_norm = nn.Parameter(torch.ones(shape.head_dim))

    def _qk_weight(self) -> Tensor:
        """[heads + kv_heads, head_dim]: the norms of queries and keys, applied to both in one go."""
        s = self.shape
        return torch.cat((self.q_norm.expand(s.heads, -1), self.k_norm.expand(s.kv_heads, -1)))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        s = self.shape
        h = rms_norm(x, self.attention_norm, s.norm_eps)
        qkv = F.linear(h, self.qkv.weight, self.qkv.bias).view(-1, s.heads + 2 * s.kv_heads, s.head_dim)
        qk, v = qkv.tensor_split((s.heads + s.kv_heads,), dim=1)
        if s.qk_norm:
            qk = rms_norm(qk, self._qk_weight(), s.norm_eps)
        qk = torch.addcmul(qk * cos, qk.roll(s.head_dim // 2, -1), sin)
        q, k = qk.to(v.dtype).tensor_split((s.heads,), dim=1)  # cos and sin are float32 in any precision
        x = torch.addmm(x, attend(self.index, q, k, v).flatten(1), self.out.weight.t())
        h = rms_norm(x, self.ffn_norm, s.norm_eps)
        gate, up = F.linear(h, self.gate_up.weight).chunk(2, dim=-1)
        return torch.addmm(x, F.silu(gate) * up, self.down.weight.t())


class Decoder(nn.Module):
    """Token ids to hidden states; `head` turns those into logits where they are wanted, and only there."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList(Layer(shape, index) for index in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))
        self.unembedding = self.embedding if shape.tied else nn.Embedding(shape.vocab, shape.width)
        cos, sin = rotations(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    cos: Tensor
    sin: Tensor

    def initialise(self, seed: int) -> Decoder:
        """Fresh weights; residual outputs are scaled down by depth (GPT-2), so that deep ones start calm."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() < 2:
                    parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                    continue
                std = 0.02
                if "embedding" not in name:
                    std = parameter.shape[1] ** -0.5
                if name.endswith(("out.weight", "down.weight")):
                    std /= math.sqrt(2 * self.shape.layers)
                parameter.normal_(0.0, std, generator=generator)
        return self

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[tokens], [tokens] -> [tokens, width], normalised and ready for `head`."""
        x = self.embedding(tokens)
        cos, sin = self.cos[positions, None], self.sin[positions, None]
        for layer in self.layers:
            x = layer(x, cos, sin, attend)
        return rms_norm(x, self.norm, self.shape.norm_eps)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits in float32, whatever the layers ran in: log-probabilities do not survive less."""
        return F.linear(hidden, self.unembedding.weight.to(hidden.dtype)).float()


def rotations(shape: Shape) -> tuple[Tensor, Tensor]:
    """cos and signed sin, [context, head_dim] each: rotated x = x cos + roll(x, half) sin."""
    frequency = shape.rope_theta ** -(
        torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
    )
    frequency = _scale(frequency, shape.rope_scaling)
    angle = torch.outer(torch.arange(shape.context, dtype=torch.float64), frequency).repeat(1, 2)
    sign = torch.ones(shape.head_dim, dtype=torch.float64)
    sign[: shape.head_dim // 2] = -1
    return angle.cos().float(), (angle.sin() * sign).float()


def _scale(frequency: Tensor, scaling: dict[str, Any] | None) -> Tensor:
    kind = (scaling or {}).get("rope_type", "default")
    if scaling is None or kind == "default":
        return frequency
    if kind == "linear":
        return frequency / scaling["factor"]
    if kind != "llama3":
        raise ValueError(
            f"rope scaling {kind!r} is not known to the fast path; known: default, linear, llama3"
        )
    # Llama 3.1: keep high frequencies, divide low ones by the factor, and blend in between.
    wavelength = 2 * math.pi / frequency
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    blend = (scaling["original_max_position_embeddings"] / wavelength - low) / (high - low)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequency / scaling["factor"] + blend * frequency
