"""Keys of where roles live: in this process, or how many of each on a cluster."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from toolwright.config.block import Block


class RankLayout(Block):
    """How ranks divide the learner's work."""

    data: PositiveInt = Field(default=1, description="sequences are divided among so many")
    sequence: PositiveInt = Field(default=1, description="the tokens of a pass are divided among so many")
    tensor: PositiveInt = Field(default=1, description="every matrix is divided among so many")

    @property
    def size(self) -> int:
        return self.data * self.sequence * self.tensor

    def __str__(self) -> str:
        named = {name: count for name, count in self.model_dump().items() if count > 1}
        return " × ".join(f"{name} {count}" for name, count in named.items()) or "data 1"


class RanksConfig(Block):
    """The policy's place; reference and critic are placed alike."""

    ranks: PositiveInt | RankLayout = Field(
        default=1,
        description="number of processes that share policy, reference and critic, or {data: 2, sequence: "
        "2, tensor: 2} to divide the tokens of a pass or the matrices too",
    )
    cpus: PositiveFloat | None = Field(
        default=None, description="CPUs of each; null: as many as fit, at most 1"
    )
    gpus: float | None = Field(default=None, ge=0, description="GPUs of each; null: depends on the cluster")
    labels: dict[str, str] = Field(default={}, description="only on nodes with these Ray labels")

    @property
    def layout(self) -> RankLayout:
        return RankLayout(data=self.ranks) if isinstance(self.ranks, int) else self.ranks


class WorkersConfig(Block):
    """The rollout workers' place."""

    workers: PositiveInt | None = Field(
        default=None,
        description="number of workers; null: one for each remaining GPU, or one for each node if there "
        "are no GPUs",
    )
    cpus: PositiveFloat | None = Field(
        default=None, description="CPUs of each; null: as many as fit, at most 1"
    )
    gpus: float | None = Field(default=None, ge=0, description="GPUs of each; null: depends on the cluster")
    labels: dict[str, str] = Field(default={}, description="only on nodes with these Ray labels")


class Placement(Block):
    """`ray`: how many of each role, on what, and how close together."""

    policy: RanksConfig = RanksConfig()
    rollout: WorkersConfig = WorkersConfig()
    colocate: Literal["auto", "yes", "no"] = Field(
        default="auto",
        description="policy and engine in one process with one set of weights; auto: if there is one GPU",
    )
    strategy: Literal["pack", "spread"] = Field(
        default="pack", description="use as few nodes as possible (pack) or as many (spread)"
    )

    @model_validator(mode="after")
    def _combinations(self) -> Placement:
        if self.colocate == "yes" and self.policy.layout.size > 1:
            raise ValueError(
                f"colocate=yes with {self.policy.layout.size} ranks of the policy: an engine cannot use "
                "sharded weights; set colocate=no, or one rank"
            )
        return self


class Runtime(Block):
    """In which process each role lives."""

    name: Literal["local", "ray"] = Field(default="local", description="one process, or actors of Ray")
    address: str | None = Field(
        default=None,
        description="`ray`: the cluster to join, `auto` or host:port; null: start one on this machine",
    )
    placement: Placement = Placement()
    start_timeout_s: PositiveFloat = Field(default=300.0, description="time limit for the start of an actor")
    publish_timeout_s: PositiveFloat = Field(
        default=300.0, description="time limit for new weights to arrive in a worker"
    )
    heartbeat_timeout_s: PositiveFloat = Field(
        default=60.0, description="an actor that has not answered for this long is replaced"
    )
    stage_timeout_s: PositiveFloat = Field(default=3600.0, description="time limit for one stage of an actor")
    learner_restarts: int = Field(
        default=3,
        ge=0,
        description="how often a run goes back to the same checkpoint after policy or critic died",
    )
