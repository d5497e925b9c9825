"""Statistics over the tokens that a mask keeps, and a random choice of them."""

from __future__ import annotations

import torch
from torch import Tensor


def mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean under the mask; 0 where it keeps nothing. What it hides may be anything, NaN included."""
    return torch.where(mask.bool(), values, 0).sum() / mask.sum().clamp(min=1)


def whiten(values: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """(x − mean) / √(var + ε) with mean and unbiased variance under the mask; 0 outside it."""
    centred = torch.where(mask.bool(), values - mean(values, mask), 0)
    variance = centred.square().sum() / (mask.sum() - 1).clamp(min=1)
    return centred * torch.rsqrt(variance + epsilon)


def reward_to_go(rewards: Tensor, mask: Tensor) -> Tensor:
    """Σ_{s ≥ t} rewards under the mask, for each token t."""
    return torch.where(mask.bool(), rewards, 0).flip(-1).cumsum(-1).flip(-1)


def decay(factor: float, like: Tensor, turn_end: Tensor | None) -> Tensor:
    """By how much each token discounts what comes after it: by `factor`, or with `turn_end` by `factor` at
    the last token of a turn and by 1 within the turn."""
    every = torch.full_like(like, factor)
    return every if turn_end is None else torch.where(turn_end.bool(), every, 1.0)


def drawn(mask: Tensor, count: int, seed: int) -> Tensor:
    """A mask of `count` of the places that this one keeps, chosen at random; of all if it keeps fewer."""
    places = mask.flatten().nonzero().flatten()
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    chosen = places[order[:count].to(places.device)]
    return torch.isin(torch.arange(mask.numel(), device=mask.device), chosen).view_as(mask)
