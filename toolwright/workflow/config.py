"""The typed configuration of `workflow search`. Imports without torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from toolwright.config.block import Block
from toolwright.config.schema import CommandConfig


class Aflow(Block):
    """AFlow's selection as published (arXiv 2410.10762): mixed uniform and softmax over the best."""

    top: PositiveInt = Field(
        default=4, description="how many candidates the choice is among, including the start"
    )
    alpha: NonNegativeFloat = Field(default=0.2, description="of the softmax over scores in percent")
    mix: float = Field(default=0.3, ge=0, le=1, description="λ: the uniform's part")
    repeats: PositiveInt = Field(default=5, description="times that a candidate runs on every task")


class Guided(Block):
    """How runs are shared, by best-arm identification (random and greedy too)."""

    first: PositiveInt | None = Field(
        default=None,
        description="runs that a candidate gets at a time; null: a 60th of the budget, at least 8",
    )
    repeats: PositiveInt = Field(default=3, description="times that a candidate runs on every task at most")
    width: PositiveInt = Field(default=2, description="candidates decided together and run side by side")


class SearchConfig(Block):
    """What is looked for, how, and what it may cost. Of each data set."""

    select: Literal["guided", "greedy", "random", "portfolio", "aflow"] = Field(
        default="guided",
        description="the strategy: edits by their value, any of the best, any of any, none, or AFlow's own",
    )
    portfolio: str = Field(
        default="default",
        description="a file of workflows to measure first; default: the shipped one (aflow: none); none",
    )
    tasks: PositiveInt = Field(default=120, description="tasks that candidates are compared on")
    folder: str = Field(default="data", description="where `toolwright data prepare` has put data sets")
    held_out: NonNegativeInt = Field(
        default=200, description="unseen tasks that the start and the best are judged by in the end"
    )
    runs: PositiveInt = Field(default=1000, description="the budget: one workflow on one task is a run")
    cost: PositiveFloat | None = Field(default=None, description="the budget in US dollars; null: none")
    converge: bool = Field(
        default=True, description="aflow: end early, when its three best have not changed for five rounds"
    )
    operators: list[str] = Field(
        default=[], description="operators that edits may use; empty: those of the data set"
    )
    start: str | None = Field(
        default=None,
        description="AFlow's folder round_N, its whole `workflows` to continue, or a workflow as JSON; "
        "null: a single call",
    )
    pool: str | None = Field(
        default=None, description="a file of experience shared with other runs; null: the run's own"
    )
    guided: Guided = Guided()
    aflow: Aflow = Aflow()


class ExecutorConfig(Block):
    """The model that workflows are run with."""

    name: Literal["simulated", "chat", "recorded"] = Field(
        default="simulated", description="simulated: a made-up model, for data `simulated` alone"
    )
    table: str | None = Field(
        default=None, description="recorded: the file of `toolwright workflow record` that is replayed"
    )
    seed: int = Field(default=0, description="simulated: which model of the family")
    latency_s: NonNegativeFloat = Field(default=0.0, description="simulated: how long a call takes")
    chat: dict[str, Any] = Field(
        default={}, description="chat: provider, model, base_url, price, limits, …, as in docs/providers.md"
    )
    temperature: NonNegativeFloat = 0.7
    max_tokens: PositiveInt = 2048
    parallel: PositiveInt = Field(default=16, description="tasks that one worker runs side by side")


class ProposerConfig(Block):
    """Who proposes edits."""

    name: Literal["uniform", "chat"] = Field(
        default="uniform",
        description="uniform: every legal edit alike; chat: a model is asked, as AFlow does",
    )
    chat: dict[str, Any] = Field(default={}, description="chat: as executor.chat")
    proposals: PositiveInt = Field(default=3, description="chat: edits asked for at a time")


class SearchRuntime(Block):
    """Which processes make the runs."""

    name: Literal["local", "ray"] = "local"
    workers: PositiveInt = Field(default=1, description="ray: processes that run candidates")
    address: str | None = Field(default=None, description="ray: a cluster to join; null: one on this machine")
    timeout_s: PositiveFloat = Field(default=3600.0, description="the longest a worker may take for its runs")


class WorkflowConfig(CommandConfig):
    """The whole configuration of `workflow search`."""

    data: list[str] = Field(default=["simulated"], description="data sets; one search each, side by side")
    search: SearchConfig = SearchConfig()
    executor: ExecutorConfig = ExecutorConfig()
    proposer: ProposerConfig = ProposerConfig()
    runtime: SearchRuntime = SearchRuntime()

    @classmethod
    def name_for(cls, composed: Any) -> str:
        return str(composed.search.select)

    @model_validator(mode="after")
    def _combinations(self) -> WorkflowConfig:
        if not self.data:
            raise ValueError("data is empty: name a data set, or `simulated`")
        if len(set(self.data)) < len(self.data):
            raise ValueError(f"data={self.data} names a data set twice")
        if (self.executor.name == "simulated") != (all(name.startswith("simulated") for name in self.data)):
            raise ValueError(
                f"executor.name={self.executor.name} cannot run data={','.join(self.data)}: simulated data "
                "needs "
                "executor.name=simulated, and all other data needs executor.name=chat or recorded"
            )
        if (self.executor.name == "recorded") != (self.executor.table is not None):
            raise ValueError(
                "executor.name=recorded and executor.table=FILE need each other; set both or neither"
            )
        return self
