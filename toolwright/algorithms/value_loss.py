"""The critic's loss, clipped like the policy's so that values move no further than the policy may.

    L = ½ max((V − R)², (clip(V, V_old − ε, V_old + ε) − R)²)

The clip is of the code published with PPO (arXiv 1707.06347); R are the returns of GAE (1506.02438).
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolwright.algorithms import aggregate as aggregation
from toolwright.algorithms.aggregate import Totals
from toolwright.algorithms.arguments import check_matrix, check_shape, working_type


def compute(
    *,
    values: Tensor,  # [trajectories, tokens], with gradient
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    clip_value: float | None = 0.2,
    aggregate: str = "token-mean",
    totals: Totals | None = None,
    norm_tokens: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss, metrics). `clip_value` None: plain squared error. With `totals`, parts sum to the whole."""
    check_matrix("value loss", "values", values)
    for name, tensor in {"old_values": old_values, "returns": returns, "mask": mask}.items():
        check_shape("value loss", name, tensor, values.shape)
    work, on = working_type(values), mask.bool()
    new, old, target = (torch.where(on, x.to(work), 0) for x in (values, old_values, returns))
    near = new if clip_value is None else torch.clamp(new, old - clip_value, old + clip_value)
    free, clipped = (new - target).square(), (near - target).square()
    loss = aggregation.compute(aggregate, 0.5 * torch.maximum(free, clipped), mask, totals, norm_tokens)
    measures = {"clip_fraction": (clipped > free).to(work), "value_mean": new, "return_mean": target}
    metrics = {
        name: aggregation.compute("token-mean", measure.detach(), mask, totals)
        for name, measure in measures.items()
    }
    return loss.to(values.dtype), metrics
