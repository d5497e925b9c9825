"""AdamW with warm-up and decay; an update whose gradient is not finite is skipped, counted and survived."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from toolwright.config import schema


class Optimizer:
    def __init__(self, module: nn.Module, config: schema.Optimizer, *, total_updates: int) -> None:
        self.config, self.total_updates = config, total_updates
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.parameters = [p for _, p in named]
        # Norms and biases are not weights to be shrunk.
        decayed = [p for p in self.parameters if p.dim() >= 2]
        kept = [p for p in self.parameters if p.dim() < 2]
        # In the order that AdamW numbers them in.
        self.names = [n for n, p in named if p.dim() >= 2] + [n for n, p in named if p.dim() < 2]
        self.inner = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": config.weight_decay}, {"params": kept, "weight_decay": 0.0}],
            lr=config.lr,
            betas=config.betas,
            fused=True,
        )
        self.updates = 0

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return self.config.lr * schedule(self.updates, self.total_updates, self.config)

    def step(self) -> dict[str, float]:
        """Clip, update, clear the gradients."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients, foreach=True)
        if hasattr(norm, "full_tensor"):  # sharded: of all ranks together, so that all of them decide alike
            norm = norm.full_tensor()
        nn.utils.clip_grads_with_norm_(self.parameters, self.config.max_grad_norm, norm, foreach=True)
        finite = bool(torch.isfinite(norm))
        metrics = {"grad_norm": float(norm), "lr": self.lr, "skipped": 0.0 if finite else 1.0}
        if finite:
            for group in self.inner.param_groups:
                group["lr"] = self.lr
            self.inner.step()
        self.inner.zero_grad()
        self.updates += 1
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """AdamW's own, but by the names of parameters rather than their numbers."""
        adamw = self.inner.state_dict()
        return {
            "adamw": {
                "state": {self.names[number]: state for number, state in adamw["state"].items()},
                "param_groups": [
                    {**group, "params": [self.names[number] for number in group["params"]]}
                    for group in adamw["param_groups"]
                ],
            },
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        adamw, number = state["adamw"], {name: i for i, name in enumerate(self.names)}
        self.inner.load_state_dict(
            {
                "state": {number[name]: of_one for name, of_one in adamw["state"].items()},
                "param_groups": [
                    {**group, "params": [number[name] for name in group["params"]]}
                    for group in adamw["param_groups"]
                ],
            }
        )
        self.updates = state["updates"]


def schedule(update: int, total: int, config: schema.Optimizer) -> float:
    """The part of the full learning rate at this update."""
    if update < config.warmup_steps:
        return (update + 1) / config.warmup_steps
    if config.decay == "constant":
        return 1.0
    span = max(1, total - config.warmup_steps)
    progress = min(1.0, (update - config.warmup_steps) / span)
    falling = 1 - progress if config.decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * falling
