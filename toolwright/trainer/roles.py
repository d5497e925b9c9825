"""The roles of a run: the same classes in one process and in the actors of a Ray cluster.

Each is built where it lives. Its methods take and return tensors, batches and trajectories; `runtime/wire.py`
packs them where a call crosses between processes.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from toolwright.agents.prompt_cut import PromptCut
from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.config import schema
from toolwright.engines import Engine
from toolwright.failures import UserError
from toolwright.learner.ranks import ALONE, Ranks
from toolwright.models.decoder import Decoder
from toolwright.models.tokenizer import Tokenizer
from toolwright.record import Array
from toolwright.runtime import host, tensors
from toolwright.runtime.roles import Roles
from toolwright.tools.settings import served
from toolwright.trainer import building, memory
from toolwright.trainer.building import needs_role
from toolwright.trainer.learning import Learner, build_critic
from toolwright.trainer.process_reward import build_process_reward
from toolwright.trainer.reward_role import RewardRole
from toolwright.trainer.role_config import RemoteRole, RoleConfig
from toolwright.trainer.teacher import build_teacher
from toolwright.trajectory import AttemptsCallback, Trajectory, ignore_attempts

if TYPE_CHECKING:
    from toolwright.learner.sharded_checkpoints import Saver
    from toolwright.learner.sharding import RankGroup

OTHERS = ("reference", "teacher", "critic", "process_reward")  # whom the policy asks
BUILDER = "toolwright.trainer.role_builder:build"


def start_roles(role_config: RoleConfig, *, learns: bool = True) -> Roles:
    """Start the roles where `runtime.name` says. Runs that do not learn have no policy, reference and
    critic."""
    config = role_config.config
    names = required_roles(config) if learns else ["rollout", "reward"]
    if config.runtime.name == "ray":
        from toolwright.runtime.cluster import RayRoles

        if learns:
            check_layout(config)
        return RayRoles(BUILDER, role_config, names)
    return Roles(BUILDER, replace(role_config, config=memory.fitted(config, learns=learns)), names)


def check_layout(config: schema.Config) -> None:
    """Raise a UserError if this model cannot be split over the configured ranks."""
    layout = config.runtime.placement.policy.layout
    if layout.sequence * layout.tensor > 1:
        from toolwright.models import parallel

        shape = memory.planned(config.model).shape
        if shape.experts is not None:
            raise UserError(
                f"runtime.placement.policy.ranks={layout}: a mixture of experts can be sharded, but its "
                "sequences and matrices cannot be split; leave out sequence and tensor"
            )
        parallel.check_tensor(shape, layout.tensor)
        parallel.check_sequence(shape, layout.sequence, tensor=layout.tensor)


def required_roles(config: schema.Config) -> list[str]:
    """List the roles that the algorithm needs. A policy with an adapter is its own reference, with the
    adapter that it began with."""
    asked = [role for role in OTHERS if needs_role(config.algorithm, role)]
    if "reference" in asked and building.adapts(config.model):
        asked.remove("reference")
    return ["rollout", *asked, "policy", "reward"]


class RoleContext:
    """What the roles of one process share. The model is built once, and colocated roles use it."""

    def __init__(self, role_config: RoleConfig, rank: host.Rank = host.ALONE) -> None:
        self.role_config, self.config, self.rank = role_config, role_config.config, rank
        self.tools = role_config.tools  # once a rollout is here, with the servers that were started for them
        self.restarted: list[str] = []  # what died beneath a role and was started again

    @cached_property
    def model(self) -> tuple[Decoder, Tokenizer]:
        config, model = self.config, self.config.model
        if self.rank.count > 1:  # whole in main memory; sharding takes its part of it to the device
            model = model.changed({"device": "cpu"})
        decoder, tokenizer = building.build_model(model, self.role_config.alphabet, seed=config.run.seed)
        building.use_processor(config.run, decoder)
        return decoder, tokenizer

    @cached_property
    def ranks(self) -> Ranks:
        """The ranks that this process learns with. Ranks wait here until all have arrived."""
        if self.rank.count == 1:
            return ALONE
        from toolwright.learner.sharding import RankGroup

        config = self.config
        address, _, port = self.rank.master.rpartition(":")
        return RankGroup.join(
            rank=self.rank.index,
            size=self.rank.count,
            address=address,
            port=int(port),
            device=building.pick_device(config.model.device, numbered=True),
            timeout_s=config.runtime.stage_timeout_s,
            offload=config.update.optimizer_state == "host",
            layout=config.runtime.placement.policy.layout,
        )

    @cached_property
    def engine(self) -> Engine:
        return building.build_engine(self.config, *self.model)

    def rollout(self, stack: ExitStack) -> Rollout:
        """Build the rollout. `stack` closes the servers that tools start."""
        self.tools = stack.enter_context(served(self.role_config.tools, died=self.restarted.append))
        cut = PromptCut.of(self.config.task)
        return Rollout(self.config.rollout, self.engine, self.model[1], tools=self.tools, cut=cut)


def build_roles(
    roles: dict[str, Any], names: Sequence[str], context: RoleContext, remote_role: RemoteRole | None
) -> None:
    """Put the named roles into `roles`. The policy comes after its reference, which is copied from the same
    weights."""

    def role(name: str) -> Any:
        return roles[name] if name in roles or remote_role is None else remote_role(name)

    def untouched() -> Decoder:
        """The model as it begins. A policy in this process will change the shared weights."""
        return copy.deepcopy(context.model[0]) if "policy" in names else context.model[0]

    builders: dict[str, Callable[[], Any]] = {
        "rollout": lambda: RolloutRole(context),
        "reference": lambda: building.build_frozen(context.config, untouched()),
        "teacher": lambda: build_teacher(context.config),
        "critic": lambda: build_critic(context.config, context.model[0]),
        "process_reward": lambda: build_process_reward(context.config, context.model[0]),
        "policy": lambda: PolicyRole(context, role),
        "reward": lambda: RewardRole(context.role_config, context.tools),
    }
    for name in builders:
        if name in names:
            roles[name] = builders[name]()
            if name == "rollout":
                roles[name].start()


class RolloutRole:
    """Attempts tasks with an engine and tools of its own."""

    def __init__(self, context: RoleContext) -> None:
        self.context, self.servers = context, ExitStack()
        self.engine = context.engine
        self.rollout: Rollout | None = None

    def start(self) -> None:
        """Start the rollout. The constructor does not, so that the engine can be closed if this fails."""
        self.rollout = self.context.rollout(self.servers)

    async def run(
        self,
        requests: Sequence[AttemptRequest],
        temperature: float | None,
        arrived: AttemptsCallback = ignore_attempts,
    ) -> list[Trajectory]:
        """Run all attempts and return them in order. `arrived` is called with each group once it is
        complete."""
        assert self.rollout is not None
        return await self.rollout.run(requests, temperature=temperature, arrived=arrived)

    def load(self, weights: tensors.PublishedWeights) -> int:
        """Replace the weights by the published ones, and return the checksum of the result."""
        found = tensors.load(self.context.model[0].learned_state(), weights)
        self.engine.publish(weights.version)
        return found

    def check_engine(self) -> None:
        """Fail before training starts if the engine cannot take new weights."""
        if not self.engine.takes_weights:
            raise UserError(
                f"engine.name={self.context.config.engine.name}: its server does not accept weights, so it "
                "can evaluate and collect attempts but not train; docs/engines.md explains how to start a "
                "server that accepts them"
            )

    def rest(self) -> None:
        """Free memory while the policy learns on the same device."""
        self.engine.rest()

    def publish(self, version: int) -> None:
        """Announce new weights to an engine that uses the policy's own tensors."""
        self.engine.publish(version)

    def describe(self) -> dict[str, Any]:
        return {
            "exact": self.engine.exact,
            "difference": getattr(self.engine, "difference", None),
            "weights_version": self.engine.weights_version,
        }

    def cache_use(self) -> dict[str, float]:
        """Metrics of the engine's cache since the last call; empty if the engine has none."""
        measure = getattr(self.engine, "cache_use", None)
        return {} if measure is None else measure()

    def awaits(self) -> str:
        return "" if self.rollout is None else self.rollout.awaits()

    def survived(self) -> list[str]:
        """The processes that died and were started again since the last call."""
        restarted, self.context.restarted[:] = list(self.context.restarted), []
        return restarted

    async def close(self) -> None:
        """Close everything, even if one part fails to close."""
        async with AsyncExitStack() as stack:
            stack.callback(self.servers.close)
            stack.push_async_callback(self.engine.close)
            if self.rollout is not None:
                stack.push_async_callback(self.rollout.close)


class PolicyRole:
    """The learner as a role. A single one asks reference and critic, here or in their own processes. One of
    several ranks holds its own part of them, beside its part of the policy."""

    def __init__(self, context: RoleContext, role: Callable[[str], Any]) -> None:
        others: dict[str, Any] = {}
        if context.rank.count == 1:
            needed = required_roles(context.config)
            others = {name: role(name) for name in OTHERS if name in needed}
        self.context = context
        # Counted while this process has all of them.
        self.parameters = sum(p.numel() for p in context.model[0].parameters())
        self.learner = Learner(
            context.config,
            context.model[0],
            max_turns=context.role_config.max_turns,
            ranks=context.ranks,
            **others,
        )
        self._taken: Sequence[Trajectory] = []

    def describe(self) -> dict[str, Any]:
        return {"parameters": self.parameters}

    def take(self, trajectories: Sequence[Trajectory]) -> None:
        """Receive the trajectories of the next step. Every rank has them before any starts to learn."""
        self._taken = trajectories

    def learn(
        self, step: int, exact: bool, baselines: dict[str, list[float]]
    ) -> tuple[dict[str, float], dict[str, Array]]:
        """Learn from the trajectories passed to `take`. Only the first rank returns the values of each
        token."""
        taken, self._taken = self._taken, []
        metrics, values = self.learner.learn(taken, step, exact=exact, baselines=baselines)
        return metrics, {} if self.context.rank.index else {n: v.numpy() for n, v in values.items()}

    def measure(self) -> dict[str, float]:
        """Measure the trajectories passed to `take` without learning from them."""
        taken, self._taken = self._taken, []
        return self.learner.measure(taken)

    def weights(self, version: int) -> tuple[int, tensors.PublishedWeights]:
        """Return the weights for engines in other processes. All ranks gather them; only the first rank gets
        them."""
        found = self.learner.policy.weights()
        if self.context.rank.index:
            return 0, tensors.PublishedWeights(version, 0, np.empty(0, dtype=np.uint8))
        published = tensors.publication(found, version)
        return published.checksum, published

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.learner.state()

    def restore(self, plain: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        self.learner.restore(plain, state)

    @cached_property
    def saver(self) -> Saver:
        """Saves the checkpoints of a learner with several ranks."""
        from toolwright.learner.sharded_checkpoints import Saver

        return Saver(cast("RankGroup", self.context.ranks))

    def save(self, folder: str, step: int, own: dict[str, Any], keep: int) -> None:
        """Write this rank's part of the checkpoint, while the next step runs."""
        plain, state = self.learner.state()
        self.saver.save(Path(folder), step, {**plain, **own}, state, keep=keep)

    def settle(self) -> None:
        """Wait until the checkpoint that is being written is in place."""
        self.saver.wait()

    def restore_from(self, path: str) -> None:
        """Read this rank's part of the checkpoint."""
        from toolwright.learner import sharded_checkpoints

        sharded_checkpoints.restore(Path(path), self.learner, self.saver.ranks)

    def export(self, folder: str) -> None:
        """Write the policy in the format of `transformers`, peft and vLLM. All ranks call it; the first one
        writes."""
        self.learner.policy.export(Path(folder))
        if self.context.rank.index == 0:
            self.context.model[1].save(Path(folder))

    def export_files(self) -> dict[str, Array]:
        """Return the exported files by name, for a driver that may not see this machine's disk."""
        with tempfile.TemporaryDirectory() as folder:
            self.export(folder)
            return {p.name: np.fromfile(p, dtype=np.uint8) for p in Path(folder).iterdir()}
