"""The roles of a run as plain classes: each is built from data where it lives, and answers data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import Tensor

from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.engines import Engine
from toolwright.failures import UserError
from toolwright.learner.ranks import ALONE, Ranks
from toolwright.models.decoder import Decoder
from toolwright.models.tokenizer import Tokenizer
from toolwright.rewards import Scorer
from toolwright.runtime import tensors
from toolwright.runtime.host import Rank
from toolwright.runtime.transport import Array, AttemptSummary, TrajectoryTable, pack, unpack
from toolwright.tools.settings import sandbox_in, served
from toolwright.trainer import roles
from toolwright.trainer.learning import (
    Learner,
    build_critic,
    build_reference,
    wants_critic,
    wants_reference,
)
from toolwright.trainer.reward_role import RewardRole, build_scorer
from toolwright.trainer.role_config import Colleagues, RemoteRole, RoleConfig
from toolwright.trajectory import Trajectory

if TYPE_CHECKING:
    from toolwright.learner.sharded_checkpoints import Saver
    from toolwright.learner.sharding import RankGroup

ONLY = Rank()


class RoleContext:
    """What the roles of one process share: the model is built once, and colocated roles use the same one."""

    def __init__(self, brief: RoleConfig, rank: Rank = ONLY) -> None:
        self.brief, self.config, self.rank = brief, brief.config, rank
        self.tools = brief.tools  # once a rollout is here, with the servers that were started for them
        self.survived: list[str] = []  # what died beneath a role and was started again

    @cached_property
    def model(self) -> tuple[Decoder, Tokenizer]:
        config, model = self.config, self.config.model
        if self.rank.count > 1:  # whole in main memory; sharding takes its part of it to the device
            model = model.model_copy(update={"device": "cpu"})
        decoder, tokenizer = roles.build_model(model, self.brief.alphabet, seed=config.run.seed)
        roles.use_processor(config.run, decoder)
        return decoder, tokenizer

    @cached_property
    def ranks(self) -> Ranks:
        """Those that this process learns with. Of several, each waits here until all are there."""
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
            device=roles.pick_device(config.model.device, numbered=True),
            timeout_s=config.runtime.stage_timeout_s,
            offload=config.update.offload,
        )

    @cached_property
    def engine(self) -> Engine:
        return roles.build_engine(self.config, *self.model)

    def check_engine(self) -> None:
        """Before anything is learned that nobody could be told of."""
        if not self.engine.takes_weights:
            raise UserError(
                f"engine.name={self.config.engine.name}: its server takes no weights, so it can evaluate and "
                "collect attempts, and cannot train; docs/engines.md says how a server is made to"
            )

    def rollout(self, stack: ExitStack) -> Rollout:
        """`stack` ends the servers that tools needed."""
        self.tools = stack.enter_context(served(self.brief.tools, died=self.survived.append))
        return Rollout(self.config.rollout, self.engine, self.model[1], tools=self.tools)

    def scorer(self) -> Scorer:
        return build_scorer(self.brief, sandbox_url=sandbox_in(self.tools))

    def learner(self, **given: Any) -> Learner:
        return Learner(self.config, self.model[0], max_turns=self.brief.max_turns, ranks=self.ranks, **given)

    def export(self, folder: Path, learner: Learner) -> None:
        """As `transformers`, peft and vLLM read it. All ranks call it, and the first writes."""
        learner.policy.export(folder)
        if self.rank.index == 0:
            self.model[1].save(folder)


class RolloutRole:
    """Attempts tasks with an engine and tools of its own."""

    def __init__(self, place: RoleContext, colleagues: Colleagues) -> None:
        self.place, self.stack = place, ExitStack()
        self.engine = place.engine
        self.rollout = place.rollout(self.stack)

    async def run(
        self, wanted: Sequence[AttemptRequest], temperature: float | None
    ) -> tuple[list[AttemptSummary], TrajectoryTable]:
        """What the driver is told of each attempt, and all of them whole."""
        attempts = await self.rollout.run(wanted, temperature=temperature)
        return [AttemptSummary.of(t) for t in attempts], pack(attempts)

    def load(self, weights: tensors.PublishedWeights) -> int:
        """The published weights in place of the present ones; the checksum of what lies there now."""
        found = tensors.load(self.place.model[0].learned_state(), weights)
        self.engine.publish(weights.version)
        return found

    def check_engine(self) -> None:
        self.place.check_engine()

    def rest(self) -> None:
        """For an engine that shares its device with the policy, while that learns."""
        self.engine.rest()

    def publish(self, version: int) -> None:
        """For an engine that stands on the learner's own tensors."""
        self.engine.publish(version)

    def describe(self) -> dict[str, Any]:
        return {
            "exact": self.engine.exact,
            "difference": getattr(self.engine, "difference", None),
            "weights_version": self.engine.weights_version,
        }

    def awaits(self) -> str:
        return self.rollout.awaits()

    def survived(self) -> list[str]:
        """What died beneath it and was started again, since last asked."""
        told, self.place.survived[:] = list(self.place.survived), []
        return told

    async def close(self) -> None:
        """All of it, also where one of them fails to."""
        async with AsyncExitStack() as ending:
            ending.callback(self.stack.close)
            ending.push_async_callback(self.engine.close)
            ending.push_async_callback(self.rollout.close)


class PolicyRole:
    """The learner. One that is alone asks reference and critic where they live; one of several ranks holds
    its part of them, beside its part of the policy."""

    def __init__(self, place: RoleContext, colleagues: Colleagues) -> None:
        algorithm = place.config.algorithm
        given: dict[str, Any] = {}
        if place.rank.count == 1:
            if "reference" in wanted_roles(place.config):
                given["reference"] = DistantReference(colleagues("reference"))
            if wants_critic(algorithm):
                given["critic"] = DistantCritic(colleagues("critic"))
        self.place, self.learner = place, place.learner(**given)
        self._taken: list[Trajectory] = []

    def describe(self) -> dict[str, Any]:
        return {"parameters": sum(p.numel() for p in self.learner.policy.decoder.parameters())}

    def take(
        self,
        picks: Array,  # [trajectories, 2]: parcel and row, in the order to learn from
        rewards: Array,  # [trajectories]
        *parcels: TrajectoryTable,
    ) -> None:
        """What the next step is to learn from: every rank has it before any of them begins."""
        by_parcel = [unpack(parcel) for parcel in parcels]
        self._taken = []
        for (parcel, row), reward in zip(picks.tolist(), rewards.tolist(), strict=True):
            trajectory = by_parcel[parcel][row]
            trajectory.reward = reward
            self._taken.append(trajectory)

    def learn(self, step: int, exact: bool, baselines: dict[str, float]) -> dict[str, float]:
        """From what was taken."""
        taken, self._taken = self._taken, []
        return self.learner.learn(taken, step, exact=exact, baselines=baselines)

    def weights(self, version: int) -> tuple[int, tensors.PublishedWeights]:
        """All ranks gather them, and the first has them."""
        found = self.learner.policy.weights()
        if self.place.rank.index:
            return 0, tensors.PublishedWeights(version, 0, np.empty(0, dtype=np.uint8))
        published = tensors.publication(found, version)
        return published.checksum, published

    def state(self) -> tuple[dict[str, Any], Any]:
        plain, state = self.learner.state()
        return plain, tensors.packed(state)

    def restore(self, plain: Mapping[str, Any], state: Any) -> None:
        self.learner.restore(plain, tensors.unpacked(state))

    @cached_property
    def saver(self) -> Saver:
        """Of several ranks."""
        from toolwright.learner.sharded_checkpoints import Saver

        return Saver(cast("RankGroup", self.place.ranks))

    def save(self, folder: str, step: int, own: dict[str, Any], keep: int) -> None:
        """Each rank writes its part of the checkpoint, while the next step runs."""
        plain, state = self.learner.state()
        self.saver.save(Path(folder), step, {**plain, **own}, state, keep=keep)

    def settle(self) -> None:
        """Until the checkpoint under way is in its place."""
        self.saver.wait()

    def restore_from(self, path: str) -> None:
        """Each rank reads its part."""
        from toolwright.learner import sharded_checkpoints

        sharded_checkpoints.restore(Path(path), self.learner, self.saver.ranks)

    def export(self) -> dict[str, Array]:
        """The files of the model as a Hugging Face folder holds them, by name."""
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            self.place.export(Path(folder), self.learner)
            return {p.name: np.fromfile(p, dtype=np.uint8) for p in Path(folder).iterdir()}


class ReferenceRole:
    def __init__(self, place: RoleContext, colleagues: Colleagues) -> None:
        self.model = build_reference(place.config, place.model[0])

    def statistics(self, batch: dict[str, Any]) -> dict[str, Any]:
        return tensors.packed(self.model.statistics(tensors.to_batch(batch)))

    def state_dict(self) -> Any:
        return tensors.packed(self.model.state_dict())

    def load_state_dict(self, state: Any) -> None:
        self.model.load_state_dict(tensors.unpacked(state))


class CriticRole:
    def __init__(self, place: RoleContext, colleagues: Colleagues) -> None:
        self.model = build_critic(place.config, place.model[0])

    def values(self, batch: dict[str, Any]) -> Any:
        return tensors.packed(self.model.values(tensors.to_batch(batch)))

    def update(self, batch: dict[str, Any]) -> dict[str, float]:
        return self.model.update(tensors.to_batch(batch))

    def state_dict(self) -> Any:
        return tensors.packed(self.model.state_dict())

    def load_state_dict(self, state: Any) -> None:
        self.model.load_state_dict(tensors.unpacked(state))


class DistantReference:
    """The reference as the learner uses it; every number crosses as an array."""

    def __init__(self, colleague: RemoteRole) -> None:
        self._colleague = colleague

    def statistics(self, batch: Batch) -> dict[str, Tensor]:
        return tensors.unpacked(self._colleague.ask("statistics", tensors.of_batch(batch)))

    def state_dict(self) -> dict[str, Any]:
        return tensors.unpacked(self._colleague.ask("state_dict"))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._colleague.ask("load_state_dict", tensors.packed(state))


class DistantCritic:
    def __init__(self, colleague: RemoteRole) -> None:
        self._colleague = colleague

    def values(self, batch: Batch) -> Tensor:
        return tensors.unpacked(self._colleague.ask("values", tensors.of_batch(batch)))

    def update(self, batch: Batch) -> dict[str, float]:
        return self._colleague.ask("update", tensors.of_batch(batch))

    def state_dict(self) -> dict[str, Any]:
        return tensors.unpacked(self._colleague.ask("state_dict"))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._colleague.ask("load_state_dict", tensors.packed(state))


ROLES: dict[str, Callable[[RoleContext, Colleagues], Any]] = {
    "policy": PolicyRole,
    "reference": ReferenceRole,
    "critic": CriticRole,
    "reward": lambda place, colleagues: RewardRole(place.brief),
    "rollout": RolloutRole,
}


def members(names: Sequence[str], brief: RoleConfig, colleagues: Colleagues, rank: Rank) -> dict[str, Any]:
    """The roles of these names, in one process and over one model."""
    place = RoleContext(brief, rank)
    return {name: ROLES[name](place, colleagues) for name in names}


def wanted_roles(config: schema.Config) -> list[str]:
    """What a run needs by its algorithm. The policy's adapter turned off is a reference already."""
    reference = wants_reference(config.algorithm) and not roles.adapts(config.model)
    extra = [("reference", reference), ("critic", wants_critic(config.algorithm))]
    return ["policy", *(name for name, wanted in extra if wanted), "reward", "rollout"]
