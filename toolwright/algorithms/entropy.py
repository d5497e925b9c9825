"""Entropy: a bonus that holds a target, and the tokens at which the policy is least decided.

    c ← c + δ where H ≤ target, else c − δ,  0 ≤ c ≤ 1        the loss has − c H while H ≤ target

(Skywork-OR1, arXiv 2505.22312.) H is the mean entropy of the last step's tokens. The bonus acts only below
the target, so a policy that explores by itself is not pushed to explore more.

    top: the tokens of highest H, a fraction of the minibatch's        arXiv 2506.01939

They are the forks, where one of several ways is taken; what follows from them is decided already.
Denominators still count all tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

HIGHEST = 1.0  # of the coefficient: an entropy that stays below its target must not drown the reward


@dataclass(frozen=True)
class EntropyBonus:
    """The coefficient of the entropy in the loss; without a target it stays as it is."""

    coef: float
    low: bool = False  # whether the entropy was last seen at its target or below

    def applied(self, target: float | None) -> float:
        return self.coef if target is None or self.low else 0.0

    def adapted(self, *, observed: float, target: float, delta: float) -> EntropyBonus:
        """The next step's. An entropy that is not finite, of an update that was skipped, changes nothing."""
        if not math.isfinite(observed):
            return self
        low = observed <= target
        coef = self.coef + (delta if low else -delta)
        return replace(self, coef=min(max(coef, 0.0), HIGHEST), low=low)


def top(entropy: Tensor, mask: Tensor, fraction: float) -> Tensor:
    """[trajectories, tokens] bool: the `fraction` of all tokens with the highest entropy, at least one."""
    hidden = entropy.masked_fill(~mask.bool(), -math.inf).flatten()
    count = max(int(mask.sum() * fraction), 1)
    chosen = mask.new_zeros(mask.numel()).bool()
    chosen[hidden.argsort(descending=True, stable=True)[:count]] = True
    return chosen.view_as(mask) & mask.bool()
