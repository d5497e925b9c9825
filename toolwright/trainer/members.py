"""The roles of a run as plain classes: each is built from data where it lives, and answers data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from toolwright import tasks as task_sets
from toolwright.agents.rollout import Rollout, Wanted
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.engines import Engine
from toolwright.models import huggingface
from toolwright.models.decoder import Decoder
from toolwright.models.tokenizer import Tokenizer
from toolwright.rewards import Scorer
from toolwright.runtime import tensors
from toolwright.runtime.host import Rank
from toolwright.runtime.transport import Array, Parcel, Told, pack, unpack
from toolwright.tools.settings import Settings, sandbox_in, served
from toolwright.trainer import roles
from toolwright.trainer.learning import (
    Learner,
    build_critic,
    build_reference,
    wants_critic,
    wants_reference,
)
from toolwright.trajectory import Task, Trajectory


@dataclass(frozen=True)
class Brief:
    """All that any role is built from."""

    config: schema.Config
    tools: Settings
    alphabet: str
    scorer: str  # the tasks' own
    max_turns: int


class Colleague(Protocol):
    """A role in another process, by its name."""

    def ask(self, method: str, *arguments: Any) -> Any: ...


Colleagues = Callable[[str], Colleague]
ALONE = Rank()


class Workplace:
    """What the roles of one process share: the model is built once, and colocated roles use the same one."""

    def __init__(self, brief: Brief, rank: Rank = ALONE) -> None:
        self.brief, self.config, self.rank = brief, brief.config, rank
        self.tools = brief.tools  # once a rollout is here, with the servers that were started for them
        self.survived: list[str] = []  # what died beneath a role and was started again

    @cached_property
    def model(self) -> tuple[Decoder, Tokenizer]:
        config = self.config
        decoder, tokenizer = roles.build_model(config.model, self.brief.alphabet, seed=config.run.seed)
        roles.use_processor(config.run, decoder)
        return decoder, tokenizer

    @cached_property
    def engine(self) -> Engine:
        return roles.build_engine(self.config, *self.model)

    def rollout(self, stack: ExitStack) -> Rollout:
        """`stack` ends the servers that tools needed."""
        self.tools = stack.enter_context(served(self.brief.tools, died=self.survived.append))
        return Rollout(self.config.rollout, self.engine, self.model[1], tools=self.tools)

    def scorer(self) -> Scorer:
        task_sets.TASKS.get(self.config.task.name)  # a user's task file may register its scorer
        return Scorer(self.config.reward, default=self.brief.scorer, sandbox_url=sandbox_in(self.tools))

    def learner(self, **given: Any) -> Learner:
        return Learner(self.config, self.model[0], max_turns=self.brief.max_turns, **given)

    def export(self, folder: Path) -> None:
        """As `transformers` and vLLM read it."""
        decoder, tokenizer = self.model
        huggingface.save(decoder, folder)
        tokenizer.save(folder)


class RolloutRole:
    """Attempts tasks with an engine and tools of its own."""

    def __init__(self, place: Workplace, colleagues: Colleagues) -> None:
        self.place, self.stack = place, ExitStack()
        self.engine = place.engine
        self.rollout = place.rollout(self.stack)

    async def run(self, wanted: Sequence[Wanted], temperature: float | None) -> tuple[list[Told], Parcel]:
        """What the driver is told of each attempt, and all of them whole."""
        attempts = await self.rollout.run(wanted, temperature=temperature)
        return [Told.of(t) for t in attempts], pack(attempts)

    def load(self, weights: tensors.Weights) -> int:
        """The published weights in place of the present ones; the checksum of what lies there now."""
        found = tensors.load(self.place.model[0].state_dict(), weights)
        self.engine.publish(weights.version)
        return found

    def publish(self, version: int) -> None:
        """For an engine that stands on the learner's own tensors."""
        self.engine.publish(version)

    def describe(self) -> dict[str, Any]:
        return {"exact": self.engine.exact, "weights_version": self.engine.weights_version}

    def awaits(self) -> str:
        return self.rollout.awaits()

    def survived(self) -> list[str]:
        """What died beneath it and was started again, since last asked."""
        told, self.place.survived[:] = list(self.place.survived), []
        return told

    async def close(self) -> None:
        await self.rollout.close()
        await self.engine.close()
        self.stack.close()


class RewardRole:
    def __init__(self, place: Workplace, colleagues: Colleagues) -> None:
        self.scorer = place.scorer()

    def check(self, tasks: Sequence[Task]) -> None:
        self.scorer.check(tasks)

    async def score(self, parcel: Parcel) -> list[tuple[float | None, dict[str, float], Any]]:
        """(reward, its parts, failure) of each attempt."""
        attempts = unpack(parcel)
        await self.scorer.score([t for t in attempts if t.failure is None])
        return [(t.reward, t.reward_parts, Told.of(t).failure) for t in attempts]

    def close(self) -> None:
        self.scorer.close()


class PolicyRole:
    """The learner; reference and critic are asked where they live."""

    def __init__(self, place: Workplace, colleagues: Colleagues) -> None:
        algorithm = place.config.algorithm
        given: dict[str, Any] = {}
        if wants_reference(algorithm):
            given["reference"] = DistantReference(colleagues("reference"))
        if wants_critic(algorithm):
            given["critic"] = DistantCritic(colleagues("critic"))
        self.place, self.learner = place, place.learner(**given)

    def describe(self) -> dict[str, Any]:
        return {"parameters": sum(p.numel() for p in self.learner.policy.decoder.parameters())}

    def learn(
        self,
        step: int,
        exact: bool,
        baselines: dict[str, float],
        picks: Array,  # [trajectories, 2]: parcel and row, in the order to learn from
        rewards: Array,  # [trajectories]
        *parcels: Parcel,
    ) -> dict[str, float]:
        by_parcel = [unpack(parcel) for parcel in parcels]
        trajectories: list[Trajectory] = []
        for (parcel, row), reward in zip(picks.tolist(), rewards.tolist(), strict=True):
            trajectory = by_parcel[parcel][row]
            trajectory.reward = reward
            trajectories.append(trajectory)
        return self.learner.learn(trajectories, step, exact=exact, baselines=baselines)

    def weights(self, version: int) -> tuple[int, tensors.Weights]:
        published = tensors.publication(self.learner.policy.decoder.state_dict(), version)
        return published.checksum, published

    def state(self) -> tuple[dict[str, Any], Any]:
        plain, state = self.learner.state()
        return plain, tensors.packed(state)

    def restore(self, plain: Mapping[str, Any], state: Any) -> None:
        self.learner.restore(plain, tensors.unpacked(state))

    def export(self) -> dict[str, Array]:
        """The files of the model as a Hugging Face folder holds them, by name."""
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            self.place.export(Path(folder))
            return {p.name: np.fromfile(p, dtype=np.uint8) for p in Path(folder).iterdir()}


class ReferenceRole:
    def __init__(self, place: Workplace, colleagues: Colleagues) -> None:
        self.model = build_reference(place.config, place.model[0])

    def statistics(self, batch: dict[str, Any]) -> dict[str, Any]:
        return tensors.packed(self.model.statistics(tensors.to_batch(batch)))

    def state_dict(self) -> Any:
        return tensors.packed(self.model.state_dict())

    def load_state_dict(self, state: Any) -> None:
        self.model.load_state_dict(tensors.unpacked(state))


class CriticRole:
    def __init__(self, place: Workplace, colleagues: Colleagues) -> None:
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

    def __init__(self, colleague: Colleague) -> None:
        self._colleague = colleague

    def statistics(self, batch: Batch) -> dict[str, Tensor]:
        return tensors.unpacked(self._colleague.ask("statistics", tensors.of_batch(batch)))

    def state_dict(self) -> dict[str, Any]:
        return tensors.unpacked(self._colleague.ask("state_dict"))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._colleague.ask("load_state_dict", tensors.packed(state))


class DistantCritic:
    def __init__(self, colleague: Colleague) -> None:
        self._colleague = colleague

    def values(self, batch: Batch) -> Tensor:
        return tensors.unpacked(self._colleague.ask("values", tensors.of_batch(batch)))

    def update(self, batch: Batch) -> dict[str, float]:
        return self._colleague.ask("update", tensors.of_batch(batch))

    def state_dict(self) -> dict[str, Any]:
        return tensors.unpacked(self._colleague.ask("state_dict"))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._colleague.ask("load_state_dict", tensors.packed(state))


ROLES: dict[str, Callable[[Workplace, Colleagues], Any]] = {
    "policy": PolicyRole,
    "reference": ReferenceRole,
    "critic": CriticRole,
    "reward": RewardRole,
    "rollout": RolloutRole,
}


def members(names: Sequence[str], brief: Brief, colleagues: Colleagues, rank: Rank) -> dict[str, Any]:
    """The roles of these names, in one process and over one model."""
    place = Workplace(brief, rank)
    return {name: ROLES[name](place, colleagues) for name in names}


def wanted_roles(algorithm: schema.Algorithm) -> list[str]:
    """What a run with this algorithm needs."""
    extra = [("reference", wants_reference(algorithm)), ("critic", wants_critic(algorithm))]
    return ["policy", *(name for name, wanted in extra if wanted), "reward", "rollout"]
