"""A layer of the decoder forward and back, as one step for autograd.

Apart, its twenty operations and theirs on the way back take the host longer to ask for than the GPU to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class AddedRows(NamedTuple):
    """Rows of a matrix that scale · B A was added to: what is learned are A and B, not the matrix."""

    matrix: str
    start: int
    rows: int
    scale: float
    a: Tensor  # [rank, in]
    b: Tensor  # [rows, rank]


class Attention(Protocol):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]: ...

    def backward(self, gradient: Tensor, saved: Any, keys: int) -> tuple[Tensor, ...]: ...


KEPT = 4  # tensors of the feed-forward half that the way back reads


def _fed(
    middle: Tensor, weight: Tensor, gate_up: Tensor, down: Tensor, eps: float, *, whole: bool = True
) -> list[Tensor]:
    """The feed-forward half: what its way back reads, and if `whole` its result."""
    h, scale = norm.normed(middle, weight, eps)
    both = torch.mm(h, gate_up.t())
    active = gated.swiglu(both)
    return [h, scale, both, active, *([torch.addmm(middle, active, down.t())] if whole else [])]


def _fed_back(
    given: Tensor,
    middle: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    eps: float,
    kept: Sequence[Tensor] | None,
    rows: int,
    of_matrix: Callable[[str, Tensor, Tensor], Tensor | None],
) -> tuple[Tensor | None, ...]:
    """The gradients of its input, norm and matrices: of so many tokens at a time if nothing is kept."""
    ffn_norm, gate_up, down = weights
    inputs: list[Tensor] = []
    sums: list[Tensor | None] = []
    for part, of_part in zip(middle.split(rows), given.split(rows), strict=True):
        h, scale, both, active = kept or _fed(part, *weights, eps, whole=False)
        of_down = of_matrix("down", of_part, active)
        of_both = gated.back(torch.mm(of_part, down), both)
        of_gate_up = of_matrix("gate_up", of_both, h)
        of_input, of_norm = norm.back(torch.mm(of_both, gate_up), part, ffn_norm, scale, of_part)
        inputs.append(of_input)
        found = [of_norm, of_gate_up, of_down]
        sums = list(map(_added, sums, found)) if sums else found
    return inputs[0] if len(inputs) == 1 else torch.cat(inputs), *sums


def _of_added(one: AddedRows, given: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of A and B from those of y = x · (W + scale · B A)ᵀ, without that of the whole matrix."""
    part, a, b = given[:, one.start : one.start + one.rows], one.a.to(left.dtype), one.b.to(left.dtype)
    of_a = wide(torch.mm(part, b).t(), left).mul_(one.scale)
    return of_a, wide(part.t(), torch.mm(left, a.t())).mul_(one.scale)


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return None if one is None or other is None else one.add_(other)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        turn: Tensor,
        attention: Attention,
        counts: tuple[int, int],
        eps: float,
        rows: int | None,
        added: Sequence[AddedRows],
        *given: Any,
    ) -> Tensor:
        p = Parameters(*given[: len(Parameters._fields)])
        ctx.added = added
        qkv, out, gate_up, down = (matrix.to(x.dtype) for matrix in (p.qkv, p.out, p.gate_up, p.down))
        qk_norm = None
        if p.q_norm is not None and p.k_norm is not None:
            qk_norm = torch.cat((p.q_norm.expand(counts[0], -1), p.k_norm.expand(counts[1], -1)))
        h, scale = norm.normed(x, p.attention_norm, eps)
        bias = None if p.qkv_bias is None else p.qkv_bias.to(x.dtype)
        flat = torch.mm(h, qkv.t()) if bias is None else torch.addmm(bias, h, qkv.t())
        attended, saved = attention.forward(*heads.split_heads(flat, qk_norm, eps, turn, *counts))
        middle = torch.addmm(x, attended.flatten(1), out.t())
        ctx.attention, ctx.counts, ctx.eps, ctx.rows = attention, counts, eps, rows
        ctx.product = wide if p.qkv.dtype == torch.float32 else torch.mm
        kept: list[Tensor] = []
        if rows is None:
            *kept, made = _fed(middle, p.ffn_norm, gate_up, down, eps)
        else:
            made = torch.empty_like(middle)
            for part, out_part in zip(middle.split(rows), made.split(rows), strict=True):
                out_part.copy_(_fed(part, p.ffn_norm, gate_up, down, eps)[-1])
        ctx.save_for_backward(
            turn, p.attention_norm, p.ffn_norm, qk_norm, qkv, out, gate_up, down,
            x, scale, h, flat, attended, middle, *kept, *saved,
        )  # fmt: skip
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        turn, attention_norm, ffn_norm, qk_norm, qkv, out, gate_up, down, *states = ctx.saved_tensors
        x, scale, h, flat, attended, middle, *states = states
        kept = states[:KEPT] if ctx.rows is None else None
        saved = states[KEPT:] if ctx.rows is None else states
        needed = dict(zip(Parameters._fields, ctx.needs_input_grad[7:], strict=False))
        of_added: list[Tensor | None] = [None] * (2 * len(ctx.added))
        given = gradients[0].contiguous()

        def of_matrix(name: str, given: Tensor, left: Tensor) -> Tensor | None:
            for number, one in enumerate(ctx.added):
                if one.matrix == name:
                    for place, found in enumerate(_of_added(one, given, left), 2 * number):
                        of_added[place] = found if of_added[place] is None else _added(of_added[place], found)
            product = ctx.product if len(given) == len(x) else wide  # of some tokens: others are added
            return product(given.t(), left) if needed[name] else None

        rows = ctx.rows or max(1, len(middle))
        weights = (ffn_norm, gate_up, down)
        of_middle, of_ffn_norm, of_gate_up, of_down = _fed_back(
            given, middle, weights, ctx.eps, kept, rows, of_matrix
        )
        assert of_middle is not None
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
        of_second = of_out, of_ffn_norm, of_gate_up, of_down
        return of_x, None, None, None, None, None, None, *of_first, *of_second, *of_added


def layer(
    x: Tensor,
    turn: Tensor,
    attention: Attention,
    parameters: Parameters,
    *,
    counts: tuple[int, int],
    eps: float,
    rows: int | None = None,
    added: Sequence[AddedRows] = (),
) -> Tensor:
    """[tokens, width] -> [tokens, width]; `counts` of heads and of key-value heads. `rows`: the feed-forward
    half is done for so many tokens at a time, and done again on the way back rather than kept.
    `added`: what matrices have in them already that is to be learned."""
    pairs = [tensor for one in added for tensor in (one.a, one.b)]
    plain = [one._replace(a=one.a.detach(), b=one.b.detach()) for one in added]
    made: Tensor = _Layer.apply(x, turn, attention, counts, eps, rows, plain, *parameters, *pairs)
    return made
