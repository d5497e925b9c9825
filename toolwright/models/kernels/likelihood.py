"""Kernels for what a row of logits says of one token: its log-probability, the entropy, Σ π²; read once,
never kept."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from toolwright.models.kernels import wide

LOGITS_AT_ONCE = 1 << 30  # numbers of a chunk of rows, in float32
BLOCK = 4096


@triton.jit
def _forward(
    logits, target, log_prob, entropy, squares, log_sum, vocab, inverse_temperature, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    base = logits + row.to(tl.int64) * vocab
    column = tl.arange(0, BLOCK)
    highest = tl.full((), float("-inf"), dtype=tl.float32)
    total = tl.zeros((), dtype=tl.float32)
    weighted = tl.zeros((), dtype=tl.float32)
    square = tl.zeros((), dtype=tl.float32)
    for start in range(0, vocab, BLOCK):
        inside = start + column < vocab
        x = tl.load(base + start + column, mask=inside, other=float("-inf")) * inverse_temperature
        above = tl.maximum(highest, tl.max(x))
        drop = tl.where(highest == float("-inf"), 0.0, highest - above)
        shrink = tl.exp(drop)
        e = tl.exp(x - above)
        weighted = (weighted + total * drop) * shrink
        total, square = total * shrink, square * shrink * shrink
        weighted += tl.sum(tl.where(inside, e * (x - above), 0.0))
        total += tl.sum(e)
        square += tl.sum(e * e)
        highest = above
    sum_ = highest + tl.log(total)
    chosen = tl.load(base + tl.load(target + row)) * inverse_temperature
    tl.store(log_prob + row, chosen - sum_)
    tl.store(entropy + row, tl.log(total) - weighted / total)
    tl.store(squares + row, square / (total * total))
    tl.store(log_sum + row, sum_)


@triton.jit
def _backward(
    logits, target, log_sum, entropy, of_log_prob, of_entropy, back, vocab, inverse_temperature,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """dx = (g (1[target] − p) − h p (log p + H)) / temperature, where g and h are the gradients of log_prob
    and of the entropy H."""
    row, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocab
    place = row.to(tl.int64) * vocab + column
    x = tl.load(logits + place, mask=inside, other=float("-inf")) * inverse_temperature
    log_p = x - tl.load(log_sum + row)
    p = tl.exp(log_p)
    g, h = tl.load(of_log_prob + row), tl.load(of_entropy + row)
    hit = (column == tl.load(target + row)).to(tl.float32)
    dx = g * (hit - p) - h * tl.where(p > 0, p * (log_p + tl.load(entropy + row)), 0.0)
    tl.store(back + place, (dx * inverse_temperature).to(back.dtype.element_ty), mask=inside)


class _Likelihood(torch.autograd.Function):
    """Logits of a chunk of rows at a time; the last chunk's are kept for the way back, which begins with it,
    those before computed again."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, unembedding: Tensor, target: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        vocab, weight = len(unembedding), unembedding.to(hidden.dtype)
        columns = torch.empty(4, len(hidden), dtype=torch.float32, device=hidden.device)
        chunks = triton.cdiv(len(hidden) * vocab, LOGITS_AT_ONCE)
        rows = max(1, triton.cdiv(len(hidden), max(1, chunks)))
        logits = columns  # where there is no row
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            logits = wide(hidden[part], weight.t())
            _forward[(len(logits),)](
                logits, target[part], *(column[part] for column in columns), vocab, 1 / temperature,
                BLOCK=BLOCK, num_warps=8,
            )  # fmt: skip
        log_prob, entropy, squares, log_sum = columns
        ctx.save_for_backward(hidden, weight, target, log_sum, entropy, logits)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.mark_non_differentiable(squares)
        return log_prob, entropy, squares

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        hidden, weight, target, log_sum, entropy, kept = ctx.saved_tensors
        of_log_prob, of_entropy = (gradient.float().contiguous() for gradient in gradients[:2])
        vocab, rows = len(weight), ctx.rows
        of_hidden = torch.empty_like(hidden)
        of_weight: Tensor | None = None
        starts = range(0, len(hidden), rows)
        for start in reversed(starts):
            part = slice(start, start + rows)
            logits = kept if start == starts[-1] else wide(hidden[part], weight.t())
            back = torch.empty_like(logits, dtype=hidden.dtype)
            _backward[(len(logits), triton.cdiv(vocab, BLOCK))](
                logits, target[part], log_sum[part], entropy[part], of_log_prob[part], of_entropy[part],
                back, vocab, 1 / ctx.temperature, BLOCK=BLOCK, num_warps=8,
            )  # fmt: skip
            torch.mm(back, weight, out=of_hidden[part])
            if ctx.needs_input_grad[1]:
                share = wide(back.t(), hidden[part])
                of_weight = share if of_weight is None else of_weight.add_(share)
        return of_hidden, of_weight, None, None


def likelihood(
    hidden: Tensor, unembedding: Tensor, target: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """[rows] each: log π(target), entropy and Σ π² of softmax(hidden · unembeddingᵀ / temperature)."""
    log_prob, entropy, squares = _Likelihood.apply(hidden.contiguous(), unembedding, target, temperature)
    return log_prob, entropy, squares
