"""Keys of where roles live: in this process, or how many of each on a cluster."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from toolwright.config.block import Block


class RankLayout(Block):
    """How ranks divide the learner's work."""

    data: PositiveInt = 1
    """sequences are divided among so many"""
    sequence: PositiveInt = 1
    """the tokens of a pass are divided among so many"""
    tensor: PositiveInt = 1
    """every matrix is divided among so many"""

    @property
    def size(self) -> int:
        return self.data * self.sequence * self.tensor

    def __str__(self) -> str:
        named = {name: count for name, count in self.model_dump().items() if count > 1}
        return " × ".join(f"{name} {count}" for name, count in named.items()) or "data 1"


class ActorsConfig(Block):
    """What each process of a role takes."""

    cpus: PositiveFloat | None = None
    """CPUs of each; null: as many as fit, at most 1"""
    gpus: NonNegativeFloat | None = None
    """GPUs of each; null: depends on the cluster"""
    labels: dict[str, str] = Field(default={})
    """only on nodes with these Ray labels"""


class RanksConfig(ActorsConfig):
    """The policy's place; reference and critic are placed alike."""

    ranks: PositiveInt | RankLayout = 1
    """number of processes that share policy, reference and critic, or {data: 2, sequence: 2, tensor: 2} to
    divide the tokens of a pass or the matrices too"""

    @property
    def layout(self) -> RankLayout:
        return RankLayout(data=self.ranks) if isinstance(self.ranks, int) else self.ranks


class WorkersConfig(ActorsConfig):
    """The rollout workers' place."""

    workers: PositiveInt | None = None
    """number of workers; null: one for each remaining GPU, or one for each node if there are no GPUs"""


class Placement(Block):
    """`ray`: how many of each role, on what, and how close together."""

    policy: RanksConfig = RanksConfig()
    rollout: WorkersConfig = WorkersConfig()
    colocate: Literal["auto", "yes", "no"] = "auto"
    """policy and engine in one process with one set of weights; auto: if there is one GPU"""
    strategy: Literal["pack", "spread"] = "pack"
    """use as few nodes as possible (pack) or as many (spread)"""

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
    """one process, or actors of Ray"""
    address: str | None = None
    """`ray`: the cluster to join, `auto` or host:port; null: start one on this machine"""
    placement: Placement = Placement()
    start_timeout_s: PositiveFloat = 300.0
    """time limit for the start of an actor"""
    publish_timeout_s: PositiveFloat = 300.0
    """time limit for new weights to arrive in a worker"""
    heartbeat_timeout_s: PositiveFloat = 60.0
    """an actor that has not answered for this long is replaced"""
    stage_timeout_s: PositiveFloat = 3600.0
    """time limit for one stage of an actor"""
    learner_restarts: NonNegativeInt = 3
    """how often a run goes back to the same checkpoint after policy or critic died"""
