"""AdamW by torch's fused kernel alone: the first step of `torch.optim` imports the compiler, for a second."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

EPSILON = 1e-8
MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW:
    """arXiv 1711.05101. A parameter without a gradient is left as it is, and so are its moments."""

    def __init__(
        self, groups: Iterable[tuple[list[nn.Parameter], float]], betas: tuple[float, float]
    ) -> None:
        """`groups` of parameters, each with its weight decay."""
        self.groups, self.betas = list(groups), betas
        self.parameters = [p for parameters, _ in self.groups for p in parameters]
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}  # of those that had a gradient

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for parameters, decay in self.groups:
            moved = tuple(p for p in parameters if p.grad is not None)
            if not moved:
                continue
            states = [self._state(p) for p in moved]
            first, second, steps = ([state[name] for state in states] for name in (*MOMENTS, "step"))
            torch._foreach_add_(steps, 1)
            torch._fused_adamw_(
                moved,
                [p.grad for p in moved if p.grad is not None],
                first,
                second,
                [],
                steps,
                lr=lr,
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=decay,
                eps=EPSILON,
                amsgrad=False,
                maximize=False,
            )

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """By the parameters' order, as `torch.optim` does it."""
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
        if p not in self.state:
            self.state[p] = {name: torch.zeros_like(p) for name in MOMENTS}
            self.state[p]["step"] = torch.zeros((), device=p.device)
        return self.state[p]
