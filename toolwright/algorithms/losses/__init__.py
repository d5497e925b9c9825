"""Policy losses: how a token's advantage becomes a gradient.

One loss a file; a new file here is found by itself. A loss is a function of keyword arguments `(old_log_prob,
log_prob, advantages, mask, …)` that returns `(losses, measures)`: the losses [trajectories, tokens], or
[trajectories] where the loss is of a whole sequence, and a dict of detached per-token measures. What all
losses share is done here: half precision, masking, importance weights, aggregation.

Some losses choose tokens by a statistic of the whole minibatch. Such a loss registers a preparation: it is
called once with the whole minibatch, and the tensors that it returns are passed to the loss of each
micro-batch. Both take their settings by name from the same `params`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from toolwright.algorithms import aggregate as aggregation
from toolwright.algorithms.aggregate import Totals
from toolwright.algorithms.arguments import check_matrix, check_names, check_pair, check_shape, working_type
from toolwright.registry import Entry, Registry

Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
Preparation = Callable[..., dict[str, Tensor]]

registry: Registry[Loss] = Registry("policy loss", "toolwright.algorithms.losses")
preparations: Registry[Preparation] = Registry("loss preparation", "toolwright.algorithms.losses")


def names() -> list[str]:
    return registry.names()


def needs(name: str) -> frozenset[str]:
    """What the trainer must provide for this loss beyond log_prob, advantages and mask."""
    return registry.get(name).needs


def prepares(name: str) -> bool:
    """True if this loss must see the whole minibatch first; if so, call `prepare`."""
    registry.get(name)
    return name in preparations.names()


@torch.no_grad()
def prepare(
    name: str,
    *,
    log_prob: Tensor,
    advantages: Tensor,
    mask: Tensor,
    old_log_prob: Tensor | None = None,
    **params: Any,
) -> dict[str, Tensor]:
    """Per-token tensors of the whole minibatch, to be cut like it and passed to `compute` by name."""
    if not prepares(name):
        return {}
    preparation = preparations.get(name)
    return preparation.target(**_given(name, preparation, log_prob, advantages, mask, old_log_prob, params))


def compute(
    name: str,
    *,
    log_prob: Tensor,  # [trajectories, tokens], with gradient
    advantages: Tensor,
    mask: Tensor,  # 1 where the policy sampled the token
    old_log_prob: Tensor | None = None,
    aggregate: str = "token-mean",
    weights: Tensor | None = None,  # importance weights, multiplied onto each token's loss
    totals: Totals | None = None,  # over the whole minibatch; None: this is the whole
    norm_tokens: float | None = None,
    **params: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss, metrics). With the same `totals`, losses, gradients and metrics of parts sum to the whole's.

    A loss of whole sequences is the mean over sequences, whatever `aggregate` says of tokens.
    """
    if prepares(name) and not any(isinstance(value, Tensor) for value in params.values()):
        params |= prepare(
            name,
            log_prob=log_prob,
            advantages=advantages,
            mask=mask,
            old_log_prob=old_log_prob,
            **params,
        )
    entry = registry.get(name)
    given = _given(name, entry, log_prob, advantages, mask, old_log_prob, params)
    if totals is None:
        totals, norm_tokens = Totals.of(mask), norm_tokens or mask.shape[-1]
    kind, found = f"policy loss {name!r}", entry.target(**given)
    check_pair(kind, found, (Tensor, dict), "the losses, a tensor, and measures, a dict")
    losses, measures = found
    if losses.ndim == 1:
        losses, aggregate = losses[:, None].expand_as(mask), "seq-mean-token-mean"
    for key, value in {"the loss": losses, **measures}.items():
        check_shape(kind, key, value, log_prob.shape)
    if weights is not None:
        check_shape(kind, "weights", weights, log_prob.shape)
        losses = losses * torch.where(mask.bool(), weights.detach(), 0).to(losses.dtype)
    loss = aggregation.compute(aggregate, losses, mask, totals, norm_tokens)
    if given.get("old_log_prob") is not None:
        measures = {"ppo_kl": given["old_log_prob"] - given["log_prob"], **measures}
    metrics = {
        key: aggregation.compute("token-mean", measure.detach().to(losses.dtype), mask, totals)
        for key, measure in measures.items()
    }
    return loss.to(log_prob.dtype), metrics


def _given(
    name: str,
    entry: Entry[Any],
    log_prob: Tensor,
    advantages: Tensor,
    mask: Tensor,
    old_log_prob: Tensor | None,
    params: dict[str, Any],
) -> dict[str, Any]:
    """Checked arguments of a loss or of its preparation: tensors in working precision, 0 outside the mask
    whatever was there."""
    kind = f"policy loss {name!r}"
    of_other = {*registry.get(name).parameters}
    if prepares(name):
        of_other |= {*preparations.get(name).parameters}
    of_other -= {*entry.parameters}
    tensors = {"log_prob": log_prob, "advantages": advantages, "mask": mask, "old_log_prob": old_log_prob}
    given = entry.accepted(**tensors) | {k: value for k, value in params.items() if k not in of_other}
    check_names("policy loss", entry, given)
    check_matrix(kind, "log_prob", log_prob)
    check_shape(kind, "mask", mask, log_prob.shape)
    work, sampled = working_type(log_prob), mask.bool()
    for key, value in given.items():
        if isinstance(value, Tensor):
            check_shape(kind, key, value, log_prob.shape)
            typed = value if value.dtype is torch.bool and key != "mask" else value.to(work)
            given[key] = torch.where(sampled, typed, torch.zeros_like(typed))
    return given
