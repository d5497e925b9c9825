"""Preference losses: what the data's own answers teach, good beside bad; nothing is sampled.

One loss a file; a new file here is found by itself. A loss is a function of keyword arguments, tensors with
one value a row, that returns `(losses, measures)`: the losses [rows], and a dict of detached measures [rows].
A loss that takes `rejected` learns from pairs, and its row is a pair:

    chosen, rejected            log π of the two answers, the sum over their tokens
    ref_chosen, ref_rejected    the same of the reference, for a loss that needs it
    chosen_length, …            the number of their tokens

A loss that takes `label` learns from single answers, and its row is one of them:

    log_prob, ref_log_prob      log π of the answer
    label                       1 for a good answer, 0 for a bad one
    unrelated, ref_unrelated    log π of an answer to another prompt
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from toolwright.algorithms.arguments import check_names
from toolwright.registry import Registry

Preference = Callable[..., tuple[Tensor, dict[str, Tensor]]]

registry: Registry[Preference] = Registry("preference loss", "toolwright.algorithms.preferences")


def names() -> list[str]:
    return registry.names()


def needs(name: str) -> frozenset[str]:
    """What the trainer must provide for this loss beyond the policy's log-probabilities."""
    return registry.get(name).needs


def learns_from_labels(name: str) -> bool:
    """True if a row is one answer with its label, and not a pair of answers."""
    return "label" in registry.get(name).parameters


def compute(
    name: str,
    *,
    log_prob: Tensor,  # [sequences], the sum over a sequence's actions, with gradient
    length: Tensor,  # [sequences]
    label: Tensor,  # [sequences]
    ref_log_prob: Tensor | None = None,  # [sequences]
    **params: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss, metrics), both the mean over rows. Sequences lie in twos: chosen and rejected of a pair, or an
    answer and an unrelated one."""
    entry = registry.get(name)
    given = entry.accepted(**_columns(log_prob, length, label, ref_log_prob)) | params
    check_names("preference loss", entry, given)
    losses, measures = entry.target(**given)
    return losses.mean(), {key: value.double().mean() for key, value in measures.items()}


def check_params(name: str, params: dict[str, Any]) -> None:
    """Try the loss on made-up numbers: what cannot work fails here."""
    numbers = -torch.arange(1.0, 5.0).double()
    label = torch.tensor([1.0, 0.0, 0.0, 0.0])
    compute(
        name, log_prob=numbers, ref_log_prob=numbers / 2, length=torch.full((4,), 8), label=label, **params
    )


def _columns(log_prob: Tensor, length: Tensor, label: Tensor, ref: Tensor | None) -> dict[str, Tensor]:
    first, second = slice(0, None, 2), slice(1, None, 2)
    columns = {
        "chosen": log_prob[first],
        "rejected": log_prob[second],
        "chosen_length": length[first],
        "rejected_length": length[second],
        "log_prob": log_prob[first],
        "unrelated": log_prob[second],
        "label": label[first],
    }
    if ref is None:
        return columns
    return columns | {
        "ref_chosen": ref[first],
        "ref_rejected": ref[second],
        "ref_log_prob": ref[first],
        "ref_unrelated": ref[second],
    }
