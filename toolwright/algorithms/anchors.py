"""Steps of trajectories: their returns, their episodes, and which of them were taken from the same state."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher

import torch
from torch import Tensor

from toolwright.algorithms.groups import Groups
from toolwright.failures import UserError


def discount(step_rewards: Tensor, trajectory: Sequence[Hashable], gamma: float) -> Tensor:
    """G_k = r_k + γ G_{k+1} along the rows of each trajectory, in the order they stand."""
    returns = torch.zeros_like(step_rewards)
    following: dict[Hashable, Tensor] = {}
    for row in reversed(range(len(trajectory))):
        key = trajectory[row]
        following[key] = step_rewards[row] + gamma * following.get(key, torch.zeros_like(step_rewards[row]))
        returns[row] = following[key]
    return returns


def episodes(
    scores: Tensor,
    group: Sequence[Hashable],
    trajectory: Sequence[Hashable],
    *,
    by_std: bool,
    epsilon: float,
    lone_is_raw: bool = False,
) -> Tensor:
    """Each row's score against the trajectories of its group, every trajectory counted once."""
    rows = Groups.of(trajectory, scores.device)
    first = {key: row for row, key in reversed(list(enumerate(trajectory)))}
    # In order of their first row, as `Groups.of` has numbered them.
    heads = sorted(first.values())
    groups = Groups.of([group[row] for row in heads], scores.device)
    score = rows.mean(scores)[heads]
    spread = groups.std(score) + epsilon if by_std else torch.ones_like(score)
    mean, spread, lone = groups.mean(score)[rows.index], spread[rows.index], groups.lone[rows.index]
    return torch.where(lone, scores.double() if lone_is_raw else 0.0, (scores.double() - mean) / spread)


def same_state(
    group: Sequence[Hashable], anchor: Sequence[Hashable], similarity: float | None
) -> list[Hashable]:
    """A key for each row, the same for rows of one group whose anchors are equal, or similar enough."""
    if similarity is None:
        return list(zip(group, anchor, strict=True))
    if not 0 < similarity <= 1:
        raise UserError(f"gigpo: similarity={similarity} must be above 0 and at most 1")
    leaders: dict[Hashable, list[str]] = {}
    result: list[Hashable] = []
    for key, state in zip(group, anchor, strict=True):
        if not isinstance(state, str):
            raise UserError(f"gigpo: similarity compares text; an anchor is {type(state).__name__}")
        known = leaders.setdefault(key, [])
        for leader in known:
            if state == leader or SequenceMatcher(None, state, leader).ratio() >= similarity:
                break
        else:
            leader = state
            known.append(state)
        result.append((key, leader))
    return result


def same_history(
    own: Sequence[tuple[Hashable, Hashable]], anchor: Sequence[Hashable], most: int
) -> Iterator[list[Hashable]]:
    """For k = 1 to `most`: a key for each row, the same for rows of one group whose last k states are equal.
    `own` is each row's group and trajectory. A row with fewer states behind it stands alone."""
    seen: dict[Hashable, list[Hashable]] = {}
    behind: list[tuple[Hashable, ...]] = []
    for key, state in zip(own, anchor, strict=True):
        seen.setdefault(key, []).append(state)
        behind.append(tuple(seen[key][-most:]))
    for k in range(1, most + 1):
        yield [
            (own[row][0], states[-k:]) if len(states) >= k else (row, k, "alone")
            for row, states in enumerate(behind)
        ]
