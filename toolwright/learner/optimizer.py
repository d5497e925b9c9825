"""AdamW with warm-up and decay; an update whose gradient is not finite is skipped, counted and survived.

AdamW is torch's fused kernel alone: the first step of `torch.optim` imports the compiler, for a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from toolwright.config import schema
from toolwright.config.block import require_number
from toolwright.learner import eight_bit
from toolwright.learner.ranks import ALONE, Ranks

EPSILON = 1e-8
MOMENTS = ("exp_avg", "exp_avg_sq")


class Move(NamedTuple):
    """Parameters that are updated together; for sharded ones, this rank's parts."""

    decay: float
    parameters: list[Tensor]
    gradients: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]
    steps: list[Tensor]


class PackedMove(NamedTuple):
    """A matrix whose AdamW moments are stored in eight bits."""

    decay: float
    parameter: Tensor
    gradient: Tensor
    state: dict[str, Tensor]
    number: int


class AdamW:
    """AdamW, arXiv 1711.05101. A parameter without a gradient keeps its value and its moments."""

    def __init__(
        self,
        groups: Iterable[tuple[list[nn.Parameter], float]],
        betas: tuple[float, float],
        *,
        packs: bool = False,
    ) -> None:
        """`groups` of parameters, each with its weight decay. `packs`: moments of matrices in eight bits, as
        those of weights in bfloat16 always are."""
        self.groups, self.betas = list(groups), betas
        self.parameters = [p for parameters, _ in self.groups for p in parameters]
        self.packed = {
            p: number
            for number, p in enumerate(self.parameters)
            if (packs and eight_bit.packed(p)) or p.dtype == torch.bfloat16
        }
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}  # of those that had a gradient

    def ready(self) -> list[Move | PackedMove]:
        """The parameters that the next step moves, with their present gradients."""
        moves: list[Move | PackedMove] = []
        for parameters, decay in self.groups:
            for p in parameters:
                if p in self.packed and p.grad is not None:
                    moves.append(PackedMove(decay, p, p.grad, self._state(p), self.packed[p]))
            moved = [p for p in parameters if p.grad is not None and p not in self.packed]
            states = [self._state(p) for p in moved]
            first, second, steps = ([state[name] for state in states] for name in (*MOMENTS, "step"))
            gradients = [p.grad for p in moved if p.grad is not None]
            if moved:
                columns = (moved, gradients, first, second, steps)
                moves.append(Move(decay, *([own_part(x) for x in column] for column in columns)))
        return moves

    @torch.no_grad()
    def step(self, lr: float, moves: Sequence[Move | PackedMove]) -> None:
        for move in moves:
            if isinstance(move, PackedMove):
                self._move(lr, move)
                continue
            torch._foreach_add_(move.steps, 1)
            torch._fused_adamw_(
                move.parameters,
                move.gradients,
                move.first,
                move.second,
                [],
                move.steps,
                lr=lr,
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=move.decay,
                eps=EPSILON,
                amsgrad=False,
                maximize=False,
            )

    def _move(self, lr: float, move: PackedMove) -> None:
        move.state["step"] += 1
        step = eight_bit.UpdateStep(lr, self.betas, move.decay, EPSILON, int(move.state["step"]))
        eight_bit.move(move.parameter, move.gradient, move.state, step, number=move.number)

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The moments, by the parameters' order as in `torch.optim`."""
        known = ((i, self.state.get(p)) for i, p in enumerate(self.parameters))
        return {"state": {i: dict(state) for i, state in known if state is not None}}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        if not set(saved["state"]) <= set(range(len(self.parameters))):
            raise ValueError(f"it has moments of more than {len(self.parameters)} parameters")
        self.state = {}
        for index, moments in saved["state"].items():
            known = self._state(self.parameters[index])
            for name, value in known.items():
                value.copy_(moments[name])

    def _state(self, p: nn.Parameter) -> dict[str, Tensor]:
        if p not in self.state and p in self.packed:
            self.state[p] = eight_bit.blank(p)
        elif p not in self.state:
            self.state[p] = {name: torch.zeros_like(p) for name in MOMENTS}
            self.state[p]["step"] = torch.zeros((), device=p.device)
        return self.state[p]


def own_part(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that this rank has: each number moves by itself."""
    if type(tensor) in (Tensor, nn.Parameter):  # to be told quickly, there are hundreds
        return tensor
    held: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return held


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
