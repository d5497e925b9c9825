"""The roles of a run as the trainer uses them; here they live in one process, and nothing is copied.

`Roles` has a part for each kind of work: `Rollouts` attempt tasks, `Rewards` score attempts, `Learners`
update the policy. `runtime/cluster.py` has the same parts over the actors of a Ray cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolwright.learner import checkpoints
from toolwright.record import Array, TokenValues, save
from toolwright.runtime.host import RoleHost
from toolwright.runtime.timeline import Event
from toolwright.trajectory import AttemptsCallback, Task, Trajectory, ignore_attempts

if TYPE_CHECKING:
    from toolwright.agents.rollout import AttemptRequest


@dataclass(frozen=True)
class Incident:
    """A problem that the run survived: who had it, what happened, and what was done about it."""

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
    """The policy or the critic is gone, with everything learned since the last checkpoint."""


class Rollouts:
    """Runs attempts. Sampling is asynchronous and can be cancelled."""

    def __init__(self, host: RoleHost) -> None:
        self.host = host

    @property
    def description(self) -> dict[str, Any]:
        """`exact`: the engine's log-probabilities are the learner's. `difference`: how far apart they are, if
        the engine has measured it."""
        found: dict[str, Any] = self.host.roles["rollout"].describe()
        return found

    @property
    def weights_version(self) -> int:
        return int(self.description["weights_version"])

    async def attempt(
        self,
        requests: Sequence[AttemptRequest],
        *,
        temperature: float | None = None,
        arrived: AttemptsCallback = ignore_attempts,
    ) -> list[Trajectory]:
        """Run all attempts and return them in order. An attempt that cannot be used says why in its
        `failure`. `arrived` is called with each complete group as it comes in, in any order."""
        found: list[Trajectory] = await self.host.call("rollout", "run", requests, temperature, arrived)
        return found

    def cache_use(self) -> dict[str, float]:
        """Return metrics of the engines' caches since the last call: of the fullest cache, and of all
        suspended turns."""
        found: dict[str, float] = self.host.roles["rollout"].cache_use()
        return found

    def rest(self) -> None:
        """Free the memory of an engine that shares its device with the policy, while the policy learns."""
        self.host.roles["rollout"].rest()

    def publish(self, version: int) -> None:
        """Give every engine the policy's current weights before this returns."""
        self.host.roles["rollout"].publish(version)

    def record(
        self, path: Path, trajectories: Sequence[Trajectory], values: Sequence[TokenValues] = ()
    ) -> None:
        """Write a step's attempts as a Parquet file, with what the learner computed for each."""
        save(path, trajectories, values)


class Rewards:
    def __init__(self, host: RoleHost) -> None:
        self.host = host

    def check(self, tasks: Sequence[Task]) -> None:
        """Raise a UserError for a ground truth that the reward cannot use."""
        self.host.call("reward", "check", tasks)

    async def score(self, trajectories: Sequence[Trajectory]) -> None:
        """Set `reward` and `reward_parts` of each attempt, or its `failure`."""
        await self.host.call("reward", "score", trajectories)


class Learners:
    """Policy, reference and critic. Each call returns once it is finished."""

    def __init__(self, host: RoleHost) -> None:
        self.host = host

    @property
    def parameters(self) -> int:
        return int(self.ask("describe")["parameters"])

    def ask(self, method: str, *arguments: Any) -> Any:
        return self.host.call("policy", method, *arguments)

    def learn(
        self,
        trajectories: Sequence[Trajectory],
        step: int,
        *,
        exact: bool,
        baselines: Mapping[str, list[float]],
    ) -> tuple[dict[str, float], dict[str, Array]]:
        """Assign credit and take one step's updates. Returns metrics, and the columns of `TokenValues` over
        the sampled tokens of all trajectories."""
        self.take(trajectories)
        metrics, columns = self.ask("learn", step, exact, dict(baselines))
        return metrics, columns

    def measure(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Compute the loss of answers that the data compares, and how often the policy agrees."""
        self.take(trajectories)
        metrics: dict[str, float] = self.ask("measure")
        return metrics

    def take(self, trajectories: Sequence[Trajectory]) -> None:
        """Hand over the trajectories that the next step learns from."""
        self.ask("take", trajectories)

    def save(self, folder: Path, step: int, own: Mapping[str, Any], *, keep: int) -> None:
        """Save a checkpoint of everything that the next update depends on, with `own` among its plain values.
        Writing may continue after this returns."""
        plain, state = self.ask("state")
        checkpoints.save(folder, step, {**plain, **own}, state, keep=keep)

    def settle(self) -> None:
        """Wait until the last checkpoint is in place. Raises if it could not be written."""

    def restore(self, path: Path) -> None:
        self.ask("restore", *checkpoints.load(path))

    def renew(self) -> None:
        """Start again as before the first step, after `LearnerLost`. A run in one process cannot: it would be
        lost itself."""

    def export(self, folder: Path) -> None:
        """Write the policy as an ordinary Hugging Face folder."""
        self.ask("export", str(folder))


class Roles:
    """All roles in this process, as in a cluster of one member. Breakpoints work anywhere."""

    dashboard: str | None = None

    def __init__(self, builder: str | Callable[..., None], role_config: Any, names: Sequence[str]) -> None:
        self.loop = asyncio.Runner()  # where attempts are sampled and scored
        self.host = RoleHost("local")
        self._restarted: list[str] = []  # what died beneath a role
        try:
            self.host.build(builder, names, role_config)
            if "policy" in names:
                self.host.call("rollout", "check_engine")
            self.host.stages.drain()
        except BaseException:
            self.close()
            raise
        self.rollouts: Rollouts = Rollouts(self.host)
        self.rewards: Rewards = Rewards(self.host)
        self.learners: Learners = Learners(self.host)

    def begin(self, step: int) -> None:
        """Prepare to sample a step: workers that joined are put to use."""

    def events(self) -> list[Event]:
        """The events of the roles since the last call."""
        events = self.host.drain()
        self._restarted += [event.died for event in events if event.died]
        return [event for event in events if not event.died]

    def incidents(self) -> list[Incident]:
        """The incidents that the run survived since the last call."""
        restarted, self._restarted = self._restarted, []
        return [Incident("the run", "sandbox", what, "it was started again") for what in restarted]

    def close(self) -> None:
        try:
            self.loop.run(self.host.close())
        finally:
            self.loop.close()
