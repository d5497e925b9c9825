"""The crew: the roles of one run, wherever they live, as the trainer speaks to them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from toolwright.runtime.timeline import Event
from toolwright.trajectory import Arrived, Task, Trajectory, unheard

if TYPE_CHECKING:
    from toolwright.agents.rollout import AttemptRequest


@dataclass(frozen=True)
class Incident:
    """Something that went wrong and was survived: who, what happened, and what was done about it."""

    who: str
    role: str
    what: str
    done: str
    resampled: int = 0  # attempts that were sampled again
    died: bool = True
    stack: str = ""

    @property
    def line(self) -> str:
        return f"{self.who} {self.what}; {self.done}"

    def as_row(self, step: int) -> dict[str, Any]:
        return {"step": step, **asdict(self)}


class LearnerLost(Exception):
    """The policy or the critic is gone, and what was learned since the last checkpoint with it."""


class Roles(Protocol):
    """Sampling is asynchronous and can be cancelled; the rest returns when it is done."""

    loop: asyncio.Runner  # where `attempt` and `score` run

    @property
    def parameters(self) -> int: ...

    @property
    def weights_version(self) -> int: ...

    @property
    def dashboard(self) -> str | None: ...

    @property
    def difference(self) -> float | None:
        """Between a log-probability of the engine's and the learner's, where the engine has measured it."""
        ...

    def check(self, tasks: Sequence[Task]) -> None:
        """A UserError for a ground truth that the reward cannot use."""
        ...

    def begin(self, step: int) -> None:
        """Called before a step is sampled: who joined is put to use."""
        ...

    async def attempt(
        self,
        wanted: Sequence[AttemptRequest],
        *,
        temperature: float | None = None,
        arrived: Arrived = unheard,
    ) -> list[Trajectory]:
        """Every attempt, in order; one that cannot be used says so in its `failure`. `arrived` hears of
        groups, each whole, as they come in; they come in any order."""
        ...

    async def score(self, trajectories: Sequence[Trajectory]) -> None:
        """Sets `reward` and `reward_parts`, or `failure`."""
        ...

    def learn(
        self, trajectories: Sequence[Trajectory], step: int, *, baselines: Mapping[str, float]
    ) -> dict[str, float]:
        """One step's updates; every engine has the new weights when this returns."""
        ...

    def save(self, folder: Path, step: int, own: Mapping[str, Any], *, keep: int) -> None:
        """A checkpoint of all that the next update depends on, with `own` among its plain values. It may
        still be on its way to the disk when this returns."""
        ...

    def settle(self) -> None:
        """Until the last checkpoint is in its place; raises if it could not be written."""
        ...

    def restore(self, path: Path, *, version: int) -> None:
        """As the checkpoint has it; every engine has its weights when this returns."""
        ...

    def renew(self) -> None:
        """What learns is started again, as it was before the first step, after `LearnerLost`."""
        ...

    def export(self, folder: Path) -> None:
        """The policy as an ordinary Hugging Face folder."""
        ...

    def record(self, path: Path, trajectories: Sequence[Trajectory]) -> None: ...

    def events(self) -> list[Event]:
        """What the roles did since last asked."""
        ...

    def incidents(self) -> list[Incident]:
        """What went wrong since last asked."""
        ...

    def close(self) -> None: ...
