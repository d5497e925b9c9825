"""Keys of where roles live: in this process, or how many of each on a cluster."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from toolwright.config.block import Block


class RankLayout(Block):
    """How ranks divide the learner's work."""

    data: PositiveInt = Field(default=1, description="ranks that share the sequences")
    sequence: PositiveInt = Field(default=1, description="ranks that share the tokens of a pass")
    tensor: PositiveInt = Field(default=1, description="ranks that share every matrix")

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
        description="processes that policy, reference and critic are sharded over: how many, or "
        "{data: 2, sequence: 2, tensor: 2} if they divide the tokens of a pass or the matrices too",
    )
    cpus: PositiveFloat | None = Field(default=None, description="of each; null: as many as fit, at most 1")
    gpus: float | None = Field(default=None, ge=0, description="of each; null: by what the cluster has")
    labels: dict[str, str] = Field(default={}, description="only on nodes with these labels of Ray's")

    @property
    def layout(self) -> RankLayout:
        return RankLayout(data=self.ranks) if isinstance(self.ranks, int) else self.ranks


class WorkersConfig(Block):
    """The rollout workers' place."""

    workers: PositiveInt | None = Field(
        default=None,
        description="how many; null: one for each free GPU, or one for each node if there is no GPU",
    )
    cpus: PositiveFloat | None = Field(default=None, description="of each; null: as many as fit, at most 1")
    gpus: float | None = Field(default=None, ge=0, description="of each; null: by what the cluster has")
    labels: dict[str, str] = Field(default={}, description="only on nodes with these labels of Ray's")


class Placement(Block):
    """`ray`: how many of each role, on what, and how close together."""

    policy: RanksConfig = RanksConfig()
    rollout: WorkersConfig = WorkersConfig()
    colocate: Literal["auto", "yes", "no"] = Field(
        default="auto",
        description="policy and engine in one process over one set of weights; auto: if there is one GPU",
    )
    strategy: Literal["pack", "spread"] = Field(
        default="pack", description="on as few nodes as possible, or as many"
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

    name: Literal["local", "ray"] = "local"
    address: str | None = Field(
        default=None, description="`ray`: the cluster to join, `auto` or host:port; null: one on this machine"
    )
    placement: Placement = Placement()
    start_timeout_s: PositiveFloat = Field(
        default=300.0, description="the longest an actor may take to start"
    )
    publish_timeout_s: PositiveFloat = Field(
        default=300.0, description="the longest new weights may take to arrive in a worker"
    )
    heartbeat_timeout_s: PositiveFloat = Field(
        default=60.0, description="an actor that has not answered for this long is replaced"
    )
    stage_timeout_s: PositiveFloat = Field(
        default=3600.0, description="the longest an actor may stay in one stage"
    )
    learner_restarts: int = Field(
        default=3,
        ge=0,
        description="how often a run returns to the same checkpoint when policy or critic die",
    )
