"""One forward pass over packed sequences, and what it says of each action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from toolwright import kernels
from toolwright.batch import Batch
from toolwright.models.attention import PackedAttention
from toolwright.models.decoder import Decoder
from toolwright.models.precision import autocast

# Logits of a chunk stay under this many numbers; beyond it they are computed again on the way back
# rather than kept, since for a real vocabulary they are far larger than everything else.
LOGITS_AT_ONCE = 1 << 26


@dataclass(frozen=True)
class Statistics:
    """[actions] each: how likely the action was, how undecided the policy, and Σ π² if asked for."""

    log_prob: Tensor
    entropy: Tensor
    sum_pi_squared: Tensor | None = None


def precision(decoder: Decoder, dtype: torch.dtype) -> torch.autocast:
    """Matrix products in `dtype`, master weights in float32."""
    return autocast(decoder.device, dtype)


def states(decoder: Decoder, batch: Batch) -> Tensor:
    """[actions, width]: the hidden state from which each action was chosen, the one before its token."""
    device = decoder.device
    attend = PackedAttention(batch.lengths, device, batch.shared_prompts(), batch.chosen_from())
    hidden = decoder(batch.tokens.to(device)[attend.kept], attend.positions, attend)
    return hidden.index_select(0, attend.where[batch.actions.to(device) - 1])


class _Chosen(torch.autograd.Function):
    """Of each row of logits the log-probability of its target, and the entropy, which has no gradient.

    ∂logits = g (1[target] − π): π alone is kept, and becomes the gradient in place. With a real vocabulary
    nothing else is as large."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        log_all = logits.log_softmax(-1)
        log_prob = log_all.gather(1, target[:, None])[:, 0]
        every = log_all.exp()
        ctx.save_for_backward(every, target)
        entropy = log_all.mul_(every).sum(-1).neg_()
        ctx.mark_non_differentiable(entropy)
        return log_prob, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        every, target = ctx.saved_tensors
        given = gradients[0][:, None]
        return every.mul_(-given).scatter_add_(1, target[:, None], given), None


def statistics(
    decoder: Decoder,
    batch: Batch,
    *,
    temperature: float,
    squares: bool = False,
    entropy_gradient: bool = False,
) -> Statistics:
    chosen = states(decoder, batch)
    targets = batch.tokens[batch.actions].to(chosen.device)
    if decoder.fast and kernels.usable(chosen):
        from toolwright.kernels.likelihood import likelihood

        log_prob, entropy, square = likelihood(chosen, decoder.unembedding.weight, targets, temperature)
        entropy = entropy if entropy_gradient else entropy.detach()
        return Statistics(log_prob, entropy, square if squares else None)
    rows = max(1, LOGITS_AT_ONCE // decoder.shape.vocab)

    def of_chunk(hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = decoder.head(hidden)
        if temperature != 1:
            logits = logits / temperature
        if not squares and not entropy_gradient:
            log_prob, entropy = _Chosen.apply(logits, target)
            return log_prob, entropy, entropy
        log_all = logits.log_softmax(-1)
        log_prob = log_all.gather(1, target[:, None])[:, 0]
        if not entropy_gradient:
            log_all = log_all.detach()
        every = log_all.exp()
        entropy = -(every * log_all).sum(-1)
        return log_prob, entropy, every.square().sum(-1) if squares else entropy

    if len(targets) <= rows:
        pieces = [of_chunk(chosen, targets)]
    else:
        pieces = [
            checkpoint(of_chunk, h, t, use_reentrant=False)
            for h, t in zip(chosen.split(rows), targets.split(rows), strict=True)
        ]
    log_prob, entropy, square = (torch.cat(column) for column in zip(*pieces, strict=True))
    return Statistics(log_prob, entropy, square if squares else None)
