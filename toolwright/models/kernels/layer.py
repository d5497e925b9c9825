"""A layer of the decoder forward and back, as one step for autograd.

Apart, its twenty operations and theirs on the way back take the host longer to ask for than the GPU to do.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from toolwright.models.kernels import gated, heads, norm, wide


class Parameters(NamedTuple):
    """As the learner keeps them: matrices are [out, in], of whatever precision."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    ffn_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Attention(Protocol):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]: ...

    def backward(self, gradient: Tensor, saved: Any, keys: int) -> tuple[Tensor, ...]: ...


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        turn: Tensor,
        attention: Attention,
        counts: tuple[int, int],
        eps: float,
        *given: Any,
    ) -> Tensor:
        p = Parameters(*given)
        qkv, out, gate_up, down = (matrix.to(x.dtype) for matrix in (p.qkv, p.out, p.gate_up, p.down))
        qk_norm = None
        if p.q_norm is not None and p.k_norm is not None:
            qk_norm = torch.cat((p.q_norm.expand(counts[0], -1), p.k_norm.expand(counts[1], -1)))
        h, scale = norm.normed(x, p.attention_norm, eps)
        bias = None if p.qkv_bias is None else p.qkv_bias.to(x.dtype)
        flat = torch.mm(h, qkv.t()) if bias is None else torch.addmm(bias, h, qkv.t())
        attended, saved = attention.forward(*heads.split_heads(flat, qk_norm, eps, turn, *counts))
        middle = torch.addmm(x, attended.flatten(1), out.t())
        h_ffn, scale_ffn = norm.normed(middle, p.ffn_norm, eps)
        both = torch.mm(h_ffn, gate_up.t())
        active = gated.swiglu(both)
        ctx.save_for_backward(
            turn, p.attention_norm, p.ffn_norm, qk_norm, qkv, out, gate_up, down,
            x, scale, h, flat, attended, middle, scale_ffn, h_ffn, both, active, *saved,
        )  # fmt: skip
        ctx.attention, ctx.counts, ctx.eps = attention, counts, eps
        ctx.product = wide if p.qkv.dtype == torch.float32 else torch.mm
        return torch.addmm(middle, active, down.t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        turn, attention_norm, ffn_norm, qk_norm, qkv, out, gate_up, down, *states = ctx.saved_tensors
        x, scale, h, flat, attended, middle, scale_ffn, h_ffn, both, active, *saved = states
        needed = dict(zip(Parameters._fields, ctx.needs_input_grad[5:], strict=True))
        given = gradients[0].contiguous()

        def of_matrix(name: str, given: Tensor, left: Tensor) -> Tensor | None:
            return ctx.product(given.t(), left) if needed[name] else None

        of_down = of_matrix("down", given, active)
        of_both = gated.back(torch.mm(given, down), both)
        of_gate_up = of_matrix("gate_up", of_both, h_ffn)
        of_middle, of_ffn_norm = norm.back(torch.mm(of_both, gate_up), middle, ffn_norm, scale_ffn, given)
        of_out = of_matrix("out", of_middle, attended.flatten(1))
        of_attended = torch.mm(of_middle, out).view_as(attended)
        of_heads = ctx.attention.backward(of_attended, saved, len(flat))
        of_flat, of_qk_norm = heads.back(
            tuple(gradient.contiguous() for gradient in of_heads), flat, qk_norm, ctx.eps, turn
        )
        of_q_norm, of_k_norm = None, None
        if of_qk_norm is not None:
            of_q_norm, of_k_norm = (share.sum(0) for share in of_qk_norm.split_with_sizes(ctx.counts))
        of_qkv = of_matrix("qkv", of_flat, h)
        of_bias = of_flat.sum(0, dtype=torch.float32) if needed["qkv_bias"] else None
        of_x, of_attention_norm = norm.back(torch.mm(of_flat, qkv), x, attention_norm, scale, of_middle)
        of_first = of_attention_norm, of_qkv, of_bias, of_q_norm, of_k_norm
        return of_x, None, None, None, None, *of_first, of_out, of_ffn_norm, of_gate_up, of_down


def layer(
    x: Tensor,
    turn: Tensor,
    attention: Attention,
    parameters: Parameters,
    *,
    counts: tuple[int, int],
    eps: float,
) -> Tensor:
    """[tokens, width] -> [tokens, width]; `counts` of heads and of key-value heads."""
    made: Tensor = _Layer.apply(x, turn, attention, counts, eps, *parameters)
    return made
