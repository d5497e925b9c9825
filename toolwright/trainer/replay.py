"""Replay of rare successes: where all attempts at a task fail, one that succeeded earlier takes a place.

A group of failures alone has no gradient, so a task that is solved once in a hundred attempts is learned from
once in a hundred. ARPO (arXiv 2505.16282) keeps a successful attempt at a task, and puts it in the place of a
failure where a later group has nothing else. An older policy sampled it: each of its tokens is weighted by
π / π_recorded, the ratio to the log-probabilities that it was sampled with (`algorithm.correction`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from toolwright.trajectory import Group, Segment, Task, Trajectory

RARE = 0.25  # the part of a group's attempts that is right at most where a task is nearly always failed


class ReplayBuffer:
    """Keeps the newest right attempt at each of up to `size` tasks, by task id, the oldest first.

    `truncated`: attempts that were cut may be kept as well.
    """

    def __init__(self, size: int, *, truncated: bool = True) -> None:
        self.size, self.truncated = size, truncated
        self.kept: dict[str, Trajectory] = {}

    def observe(self, group: Group, right: Sequence[bool]) -> None:
        """Keep an attempt of a group that succeeds rarely, and drop attempts at tasks that are no longer
        hard."""
        share, task = sum(right) / len(right), group.task.id
        attempts = [t for t, good in zip(group.trajectories, right, strict=True) if good]
        usable = [t for t in attempts if self.truncated or not t.cut]
        if usable or share > RARE:
            self.kept.pop(task, None)
        if usable and share <= RARE:
            self.kept[task] = _here(usable[0])
            for oldest in list(self.kept)[: -self.size]:
                del self.kept[oldest]

    def fill(self, group: Group, right: Sequence[bool]) -> Group | None:
        """Return a group of failures with its last attempt replaced by an earlier success, or None if there
        is none."""
        found = self.kept.get(group.task.id)
        if any(right) or found is None:
            return None
        *others, last = group.trajectories
        again = replace(found, task=group.task, group=last.group, index=last.index)
        return Group(group.task, [*others, again])

    def state(self) -> list[Trajectory]:
        return list(self.kept.values())

    def restore(self, kept: Iterable[Trajectory]) -> None:
        self.kept = {trajectory.task.id: trajectory for trajectory in kept}


def _here(trajectory: Trajectory) -> Trajectory:
    """Copy an attempt into this process, wherever its tokens are."""
    return Trajectory(**{field.name: getattr(trajectory, field.name) for field in fields(Trajectory)})


def to_json(kept: Iterable[Trajectory]) -> list[dict[str, Any]]:
    """Convert attempts to the form that a checkpoint stores. Kept attempts have no failure."""
    return [asdict(trajectory) for trajectory in kept]


def from_json(kept: Iterable[Mapping[str, Any]]) -> list[Trajectory]:
    return [
        Trajectory(
            **{
                **values,
                "task": Task(**values["task"]),
                "segments": [Segment(**segment) for segment in values["segments"]],
            }
        )
        for values in kept
    ]
