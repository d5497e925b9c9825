"""AdamW by torch's fused kernel alone: the first step of `torch.optim` imports the compiler, for a second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from toolwright.learner import eight_bit

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
