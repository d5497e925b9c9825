"""What runs a workflow on tasks: a simulated model, or a chat model on a data set, within a cost limit."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolwright.failures import UserError
from toolwright.providers import ChatModel, close
from toolwright.providers.budget import Amount, Budgeted, Spending, SpendingBudget
from toolwright.providers.settings import ChatSettings, Price
from toolwright.trajectory import Task
from toolwright.workflow.config import WorkflowConfig
from toolwright.workflow.datasets import load
from toolwright.workflow.evaluate import TaskEvaluator
from toolwright.workflow.graph import WorkflowLimits
from toolwright.workflow.interpreter import (
    CodeRunner,
    CodeSandbox,
    WorkflowInterpreter,
    seed_of,
    toolbox_of,
)
from toolwright.workflow.operators import TOOL
from toolwright.workflow.simulate import PROMPTS, SimulatedChat, SimulatedRunner, World
from toolwright.workflow.table import RecordedExecutor

if TYPE_CHECKING:
    from toolwright.rewards import Scorer


@dataclass(frozen=True)
class CostLimit:
    """A cost limit in dollars: plain data, opened in the process that spends. `file` keeps what was spent
    across restarts; `actor` keeps it for a cluster, where the file is out of reach."""

    dollars: float
    file: str
    actor: Any = None

    def open(self) -> Spending:
        if self.actor is not None:
            return _CostLimitClient(self.actor)
        return SpendingBudget(dollars=self.dollars, file=Path(self.file))

    def serve(self) -> CostLimit:
        """The same limit for all workers of a Ray cluster: an actor on this node keeps the account."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor: Any = ray.remote(CostLimitActor)
        actor = actor.options(num_cpus=0, max_restarts=-1, scheduling_strategy=here)
        return replace(self, actor=actor.remote(self.dollars, self.file))


class CostLimitActor:
    """The actor that keeps a cost limit. A worker that died comes back under its name, and what it had
    reserved counts as spent: nobody knows how far its calls had come."""

    def __init__(self, dollars: float, file: str) -> None:
        self.budget = SpendingBudget(dollars=dollars, file=Path(file))
        self._life: dict[str, int] = {}
        self._held: dict[str, dict[int, Amount]] = {}

    async def join(self, worker: str, life: int) -> None:
        if self._life.get(worker) == life:
            return  # what it holds is under way
        self._life[worker] = life
        for number, most in self._held.pop(worker, {}).items():
            self.budget.settle(number, most)

    async def reserve(self, worker: str, life: int, most: Amount) -> int:
        number = await self.budget.reserve(most)
        if self._life.setdefault(worker, life) != life:  # it died while it waited
            self.budget.settle(number, Amount())
        else:
            self._held.setdefault(worker, {})[number] = most
        return number

    async def settle(self, worker: str, number: int, used: Amount) -> None:
        if self._held.get(worker, {}).pop(number, None) is not None:
            self.budget.settle(number, used)


class _CostLimitClient:
    """A worker's client of the actor."""

    def __init__(self, account: Any) -> None:
        import ray

        self.account = account
        self.worker, self.life = ray.get_runtime_context().get_actor_id() or "driver", os.getpid()
        self.joined = self.account.join.remote(self.worker, self.life)

    async def reserve(self, most: Amount) -> int:
        await self.joined  # calls of an actor that answers many at once may overtake each other
        return int(await self.account.reserve.remote(self.worker, self.life, most))

    def settle(self, number: int, used: Amount) -> None:
        self.account.settle.remote(self.worker, number, used)


class OpenExecutor:
    """An executor in the process that makes its runs: an evaluator for each repeat, over one chat model, one
    scorer, one code runner and one toolbox. Another repeat of the same run is another sample."""

    def __init__(
        self,
        executor: SimulatedExecutor | ChatExecutor,
        chat: ChatModel,
        scorer: Scorer,
        runner: CodeRunner,
        *,
        seed: Callable[[int], int],
        **sampling: Any,
    ) -> None:
        self.executor, self.chat, self.scorer, self.runner = executor, chat, scorer, runner
        self.tools, self.seed, self.sampling = toolbox_of(executor.tools), seed, sampling
        self._made: dict[int, TaskEvaluator] = {}

    def __call__(self, repeat: int) -> TaskEvaluator:
        if repeat not in self._made:
            own, how = self.executor, {"runner": self.runner, "tools": self.tools, **self.sampling}
            interpreter = WorkflowInterpreter(self.chat, limits=own.limits, seed=self.seed(repeat), **how)
            self._made[repeat] = TaskEvaluator(interpreter, self.scorer, offers=own.offers)
        return self._made[repeat]

    async def close(self) -> None:
        """Close all parts, even if one of them fails."""
        async with AsyncExitStack() as ending:
            ending.callback(self.scorer.close)
            ending.push_async_callback(close, self.chat)
            ending.push_async_callback(self.runner.close)
            ending.push_async_callback(self.tools.close)


def build_executor(
    config: WorkflowConfig,
    name: str,
    *,
    held_out: bool = False,
    cache: str | None = None,
    cost_limit: CostLimit | None = None,
) -> Executor:
    """Build the executor of one of the configuration's data sets."""
    search, executor = config.search, config.executor
    split, count = ("test", search.held_out) if held_out else ("validation", search.tasks)
    tools = tuple(name for name in search.operators if name.startswith(TOOL))
    if executor.name == "simulated":
        number = name.removeprefix("simulated").lstrip("-")
        if number and not number.isdigit():
            raise UserError(f"data={name}: write `simulated`, or `simulated-N` for world N")
        return SimulatedExecutor(
            seed=int(number) if number else executor.seed,
            count=count,
            split=split,
            latency_s=executor.latency_s,
            parallel=executor.parallel,
            cost_limit=cost_limit,
            tools=tools,
        )
    if executor.name == "recorded":
        return RecordedExecutor(executor.table or "", name, count=count, split=split)
    found = load(
        name,
        folder=Path(search.folder),
        validation_size=None if held_out else search.tasks,
        test_size=search.held_out if held_out else None,
        seed=config.run.seed,
    )
    chat = chat_settings("executor.chat", executor.chat)
    return ChatExecutor(
        name=name,
        chosen=tuple(found.test if held_out else found.validation),
        scorer=found.scorer,
        found=found.offers,
        split=split,
        data=found.digest,
        chat=chat.model_dump_json(),
        temperature=executor.temperature,
        max_tokens=executor.max_tokens,
        cache=cache,
        parallel=executor.parallel,
        cost_limit=cost_limit,
        tools=tools,
    )


def chat_settings(where: str, told: Mapping[str, Any]) -> ChatSettings:
    """Validate the settings of a chat model, its key and its price, before anything is paid for."""
    from toolwright.config.validate import validate
    from toolwright.providers import check

    settings = validate(ChatSettings, dict(told), origin=lambda key: f"{where}.{key}")
    check(settings)
    return settings


SIMULATED_OPERATORS = ("Custom", "AnswerGenerate", "Programmer", "ScEnsemble", "Vote", "Revise", "Format")


@dataclass(frozen=True)
class SimulatedExecutor:
    """A simulated model on its simulated tasks."""

    seed: int
    count: int
    split: str = "validation"
    latency_s: float = 0.0
    parallel: int = 16
    cost_limit: CostLimit | None = None  # what calls are paid from, where that is limited
    tools: tuple[str, ...] = ()  # operators that are tools
    limits: WorkflowLimits = field(default_factory=WorkflowLimits)
    recorded: None = None

    @property
    def setting(self) -> str:
        return f"simulated-{self.seed}/{self.split}"

    @property
    def kind(self) -> str:
        return "math"

    @property
    def operators(self) -> Sequence[str]:
        return SIMULATED_OPERATORS

    @property
    def prompts(self) -> Mapping[str, str]:
        return PROMPTS

    @property
    def offers(self) -> Set[str]:
        return {"sandbox", *self.tools}

    def tasks(self) -> Sequence[Task]:
        return World.drawn(self.seed).tasks(self.count, split=self.split)

    def open(self) -> OpenExecutor:
        from toolwright.config import schema
        from toolwright.rewards import Scorer

        world = World.drawn(self.seed)
        chat: ChatModel = SimulatedChat(world, latency_s=self.latency_s)
        if self.cost_limit is not None:
            price = Price(input=world.price_in, output=world.price_out)
            chat = Budgeted(chat, self.cost_limit.open(), price=price)
        scorer = Scorer(schema.Reward(workers=1), default="numeric")
        return OpenExecutor(
            self, chat, scorer, SimulatedRunner(), seed=lambda repeat: seed_of(self.seed, repeat)
        )


MATH = ("Custom", "ScEnsemble", "Vote", "Programmer", "Review", "Revise", "Format")
CODE = ("Custom", "CustomCodeGenerate", "ScEnsemble", "Test", "Revise")
COMPARES_WORDS = ("em", "f1", "drop")  # scorers of answers in words; data sets have further names of them
QUESTIONS = ("Custom", "AnswerGenerate", "ScEnsemble", "Vote", "Revise", "Format")


@dataclass(frozen=True)
class ChatExecutor:
    """A chat model on a data set. `chat` is the model's settings as JSON, `cache` the reply file, `data` a
    digest of the data set's content."""

    name: str
    chosen: tuple[Task, ...]
    scorer: str
    found: frozenset[str]
    split: str
    data: str
    chat: str
    temperature: float
    max_tokens: int
    cache: str | None = None
    parallel: int = 16
    cost_limit: CostLimit | None = None  # what calls are paid from, where that is limited
    tools: tuple[str, ...] = ()  # operators that are tools
    limits: WorkflowLimits = field(default_factory=WorkflowLimits)
    recorded: None = None

    @property
    def setting(self) -> str:
        """The name of all that a score depends on: data set and content, split, model, server, sampling."""
        model = ChatSettings.model_validate_json(self.chat)
        rest = {**model.identity(), "max_tokens": self.max_tokens, "data": self.data, "scorer": self.scorer}
        told = json.dumps(rest, sort_keys=True, default=str).encode()
        digest = hashlib.blake2b(told, digest_size=6).hexdigest()
        server = f" at {model.base_url}" if model.base_url else ""
        return (
            f"{self.name}/{self.split} with {model.provider}:{model.model}{server}, "
            f"temperature {self.temperature:g}, {digest}"
        )

    @property
    def kind(self) -> str:
        """The kind of problems: math, code or question."""
        from toolwright.rewards import SCORERS

        if "entry_point" in self.found:
            return "code"
        if self.scorer not in SCORERS.names():
            return "math"
        words = {SCORERS.get(name).target for name in COMPARES_WORDS}
        return "question" if SCORERS.get(self.scorer).target in words else "math"

    @property
    def operators(self) -> Sequence[str]:
        return {"code": CODE, "question": QUESTIONS}.get(self.kind, MATH)

    @property
    def prompts(self) -> Mapping[str, str]:
        return PROMPTS if self.kind != "code" else {}

    @property
    def offers(self) -> Set[str]:
        return self.found.union({"sandbox"}, self.tools)

    def tasks(self) -> Sequence[Task]:
        return self.chosen

    def open(self) -> OpenExecutor:
        from toolwright.config import schema
        from toolwright.providers import open_chat
        from toolwright.rewards import Scorer

        chat = open_chat(
            ChatSettings.model_validate_json(self.chat),
            budget=None if self.cost_limit is None else self.cost_limit.open(),
            cache=None if self.cache is None else Path(self.cache),
        )
        sampling = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        scorer = Scorer(schema.Reward(), default=self.scorer)
        return OpenExecutor(self, chat, scorer, CodeSandbox(), seed=lambda repeat: repeat, **sampling)


# A model and a data set to run workflows on: plain data, opened in the process that makes the runs.
Executor = SimulatedExecutor | ChatExecutor | RecordedExecutor
