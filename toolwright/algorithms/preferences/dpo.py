"""Direct preference optimisation: a pair's margin of implicit rewards, as a classifier's logit.

    r(y) = β log π(y) / π_ref(y)        h = r(chosen) − r(rejected)
    L = −(1 − ε) log σ(h) − ε log σ(−h)

arXiv 2305.18290. `label_smoothing` is ε, the share of pairs whose label is wrong (conservative DPO, E.
Mitchell's note on noisy preferences, 2023).
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from toolwright.algorithms.preferences import registry
from toolwright.failures import UserError


@registry.register("dpo", needs={"reference"})
def dpo(
    *,
    chosen: Tensor,
    rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    if beta <= 0 or not 0 <= label_smoothing < 0.5:
        raise UserError(
            f"dpo: beta={beta} must be above 0, and label_smoothing={label_smoothing} in [0, 0.5)"
        )
    margin = beta * ((chosen - ref_chosen) - (rejected - ref_rejected))
    losses = -(1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)
    return losses, {"accuracy": margin.detach().sign() / 2 + 0.5, "margin": margin.detach()}
