"""What crosses between processes.

Roles speak of trajectories, batches and tensors; the wire carries arrays. A role's methods take and return
the same objects wherever they are called from. Within one process they are called directly. Between two,
`encode` and `decode` stand at both ends of every call.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from toolwright.record import Array, from_table, to_table
from toolwright.runtime.transport import summary_of
from toolwright.trajectory import Trajectory


@dataclass(frozen=True)
class TrajectoryRows:
    """Trajectories as rows of the tables that follow in a call."""

    places: Array  # [trajectories, 2]: table and row, in order
    # What became of each since it was sampled: the reward, its parts, and what a scorer gave each step.
    rewards: Array  # [trajectories]
    reward_parts: list[dict[str, float]]
    step_rewards: list[list[float]]

    def of(self, tables: Sequence[pa.Table]) -> list[Trajectory]:
        whole = [from_table(table) for table in tables]
        chosen = [whole[table][row] for table, row in self.places.tolist()]
        scores = zip(self.rewards.tolist(), self.reward_parts, self.step_rewards, strict=True)
        for trajectory, score in zip(chosen, scores, strict=True):
            trajectory.reward, trajectory.reward_parts, trajectory.step_rewards = score
        return chosen


def encode(value: Any) -> Any:
    """Replace tensors and batches by arrays, and attempts by their summaries and a table."""
    if isinstance(value, list) and value and isinstance(value[0], Trajectory):
        # Ray packs each item of a list on its own, and a tuple whole.
        return tuple([summary_of(t) for t in value]), to_table(value)
    if "torch" not in sys.modules:  # a process without it has no tensors, and need not load it
        return value
    from toolwright.runtime import tensors

    return tensors.packed(value)


def decode(value: Any) -> Any:
    if isinstance(value, pa.Table):
        return from_table(value)
    if "torch" not in sys.modules:
        return value
    from toolwright.runtime import tensors

    return tensors.unpacked(value)


def encode_arguments(arguments: Sequence[Any]) -> list[Any]:
    return [encode(argument) for argument in arguments]


def decode_arguments(arguments: Sequence[Any]) -> list[Any]:
    if arguments and isinstance(arguments[0], TrajectoryRows):
        return [arguments[0].of(arguments[1:])]
    return [decode(argument) for argument in arguments]
