"""The shape of a decoder: its sizes, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from toolwright.models.experts import ExpertShape


@dataclass(frozen=True)
class Shape:
    """The sizes and options of one model of the family."""

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
    experts: ExpertShape | None = None
    # Keys of the original configuration to keep on saving.
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """The parameters of a fresh model. A model on torch's `meta` device would import its compiler."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        a_layer = self.width * (2 * q + 2 * kv + 3 * self.ffn + 2)  # its matrices, and two norms
        return self.width * (self.vocab + 1) + self.layers * a_layer

    @property
    def token_ffn(self) -> int:
        """The width of all that a token passes through in a feed-forward half."""
        return self.ffn if self.experts is None else self.experts.used * self.experts.ffn

    @property
    def idle_parameters(self) -> int:
        """Parameters of the experts that a token does not use."""
        e = self.experts
        return 0 if e is None else (self.layers - len(e.dense)) * (e.count - e.used) * 3 * e.ffn * self.width

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer not in self.experts.dense
