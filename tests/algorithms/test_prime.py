"""PRIME's advantages, against a reference that is written down token by token."""

from __future__ import annotations

import math

import pytest
import torch

from toolwright.algorithms import advantages

REWARDS = [[0.5, -1.0, 2.0, 0.25], [1.5, 0.5], [-0.5, 0.75, 1.0], [2.0]]
OUTCOMES = [1.0, 0.0, 1.0, 1.0]
GROUPS = ["a", "a", "a", "b"]


def by_hand(beta: float, process: float, outcome: float) -> list[list[float]]:
    """In float64, as the formula of the docstring reads."""
    earned = [[beta * q for q in row[:-1]] + [0.0] for row in REWARDS]
    largest = max(abs(sum(row[t:])) for row in earned for t in range(len(row)))
    earned = [[r / (largest + 1e-6) for r in row] for row in earned]
    returns = []
    for i, row in enumerate(earned):
        mates = [j for j in range(len(earned)) if GROUPS[j] == GROUPS[i]]
        n = len(mates)
        if n == 1:
            returns.append([0.0] * len(row))
            continue
        usual = sum(sum(earned[j]) / len(earned[j]) for j in mates) / n
        credit = [process * n / (n - 1) * (r - usual) for r in row]
        credit[-1] += outcome * n / (n - 1) * (OUTCOMES[i] - sum(OUTCOMES[j] for j in mates) / n)
        returns.append([sum(credit[t:]) for t in range(len(credit))])
    every = [value for row in returns for value in row]
    mean = sum(every) / len(every)
    variance = sum((value - mean) ** 2 for value in every) / (len(every) - 1)
    return [[(value - mean) / math.sqrt(variance + 1e-8) for value in row] for row in returns]


@pytest.mark.parametrize(("process", "outcome"), [(1.0, 1.0), (0.0, 1.0), (2.0, 0.5)])
def test_advantages_are_those_of_the_formula(process: float, outcome: float) -> None:
    longest = max(map(len, REWARDS))
    mask = torch.tensor([[1.0] * len(row) + [0.0] * (longest - len(row)) for row in REWARDS])
    log_ratio = torch.tensor([[*row, *[9.0] * (longest - len(row))] for row in REWARDS])
    found, _ = advantages.compute(
        "prime",
        rewards=torch.zeros_like(mask),
        scores=torch.tensor(OUTCOMES),
        mask=mask,
        group=GROUPS,
        implicit_reward=log_ratio,
        beta=0.05,
        process_weight=process,
        outcome_weight=outcome,
    )
    wanted = by_hand(0.05, process, outcome)
    for row, (line, own) in enumerate(zip(found.tolist(), wanted, strict=True)):
        assert line[: len(own)] == pytest.approx(own, abs=1e-5), row
        assert not any(line[len(own) :])
