"""AdamW with warm-up and decay; an update whose gradient is not finite is skipped, counted and survived."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from toolwright.config import schema
from toolwright.config.block import require_number
from toolwright.learner.adamw import AdamW
from toolwright.learner.ranks import ALONE, Ranks


class Optimizer:
    def __init__(
        self,
        module: nn.Module,
        config: schema.OptimizerConfig,
        *,
        total_updates: int,
        packs: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        """`packs`: the moments of matrices are kept in eight bits."""
        self.module, self.ranks = module, ranks
        self.config, self.total_updates = config, total_updates
        self.rate = require_number(config.lr, "the learning rate, lr")
        self.named = named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.parameters = [p for _, p in named]
        # Norms and biases are not weights to be shrunk.
        decayed = [p for p in self.parameters if p.dim() >= 2]
        kept = [p for p in self.parameters if p.dim() < 2]
        # In the order that AdamW numbers them in.
        self.names = [n for n, p in named if p.dim() >= 2] + [n for n, p in named if p.dim() < 2]
        self.inner = AdamW([(decayed, config.weight_decay), (kept, 0.0)], config.betas, packs=packs)
        self.updates = 0

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return self.rate * schedule(self.updates, self.total_updates, self.config)

    def step(self) -> dict[str, float]:
        """Clip, update, clear the gradients."""
        gradients = {n: p.grad for n, p in self.named if p.grad is not None}
        norm = self.ranks.norm(self.module, gradients)  # of all ranks together: they decide alike
        moves = self.inner.ready()  # while a GPU is still at the norm
        length, most = float(norm), self.config.max_grad_norm
        finite = math.isfinite(length)
        metrics = {"grad_norm": length, "lr": self.lr, "skipped": 0.0 if finite else 1.0}
        if finite:
            if length > most:
                nn.utils.clip_grads_with_norm_(self.parameters, most, norm, foreach=True)
            self.inner.step(self.lr, moves)
        self.inner.zero_grad()
        self.updates += 1
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The state by the names of parameters, which stay the same however they are sharded."""
        state = self.inner.state_dict()["state"]
        named = {self.names[number]: of_one for number, of_one in state.items()}
        return {"adamw": {"state": named}, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        number = {name: i for i, name in enumerate(self.names)}
        named = state["adamw"]["state"]
        self.inner.load_state_dict({"state": {number[name]: of_one for name, of_one in named.items()}})
        self.updates = state["updates"]


def schedule(update: int, total: int, config: schema.OptimizerConfig) -> float:
    """The part of the full learning rate at this update."""
    if update < config.warmup_steps:
        return (update + 1) / config.warmup_steps
    if config.decay == "constant":
        return 1.0
    span = max(1, total - config.warmup_steps)
    progress = min(1.0, (update - config.warmup_steps) / span)
    falling = 1 - progress if config.decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * falling
