"""What runs a workflow on tasks: a simulated model, or a chat model on a data set, within a cost limit."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from toolwright.failures import UserError, nearest
from toolwright.providers import ChatModel, close
from toolwright.providers.budget import Amount, Budgeted, Spending, SpendingBudget
from toolwright.providers.settings import ChatSettings, Price
from toolwright.trajectory import Task
from toolwright.workflow.config import WorkflowConfig
from toolwright.workflow.datasets import DataSet, load
from toolwright.workflow.evaluate import TaskEvaluator, WorkflowOutcome
from toolwright.workflow.graph import WorkflowLimits
from toolwright.workflow.interpreter import CodeRunner, CodeSandbox, WorkflowInterpreter, seed_of, toolbox_of
from toolwright.workflow.operators import TOOL
from toolwright.workflow.program import Workflow
from toolwright.workflow.simulate import PROMPTS, SimulatedChat, SimulatedRunner, World
from toolwright.workflow.table import RecordedTable, Split, load_tables_once

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


@dataclass(frozen=True, kw_only=True)
class Executor:
    """A model and a data set to run workflows on: plain data, opened in the process that makes the runs."""

    setting: str  # the name of all that a score depends on
    kind: str  # of problems: math, code or question
    tasks: Sequence[Task]
    operators: Sequence[str]  # that edits may use, unless the configuration names others
    prompts: Mapping[str, str]  # that edits may use
    offers: Set[str] | None  # what its tasks have of the operators' `needs`; None: all of it
    tools: Sequence[str] = ()  # operators that are tools
    parallel: int = 16
    cost_limit: CostLimit | None = None  # what calls are paid from
    cache: str | None = None  # the file of replies
    limits: WorkflowLimits = field(default_factory=WorkflowLimits)
    recorded: RecordedTable | None = None

    @property
    def available(self) -> Set[str] | None:
        """What tasks and machine have of the operators' `needs`."""
        return None if self.offers is None else {*self.offers, "sandbox", *self.tools}

    def open(self) -> OpenChat | OpenTable:
        """Open what makes the runs, in the process that makes them."""
        raise NotImplementedError


class OpenChat:
    """A chat model with a scorer, a code runner and a toolbox. Another repeat of a run is another sample."""

    def __init__(
        self,
        executor: Executor,
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

    async def run(self, workflow: Workflow, task: Task, repeat: int) -> WorkflowOutcome:
        if repeat not in self._made:
            own, how = self.executor, {"runner": self.runner, "tools": self.tools, **self.sampling}
            interpreter = WorkflowInterpreter(self.chat, limits=own.limits, seed=self.seed(repeat), **how)
            self._made[repeat] = TaskEvaluator(interpreter, self.scorer, offers=own.available)
        return await self._made[repeat].evaluate(workflow, task)

    async def close(self) -> None:
        """Close all parts, even if one of them fails."""
        async with AsyncExitStack() as ending:
            ending.callback(self.scorer.close)
            ending.push_async_callback(close, self.chat)
            ending.push_async_callback(self.runner.close)
            ending.push_async_callback(self.tools.close)


def build_executor(config: WorkflowConfig, name: str, split: Split = "validation") -> Executor:
    """Build the executor of one of the configuration's data sets."""
    search, executor = config.search, config.executor
    count = search.tasks if split == "validation" else search.held_out
    common: dict[str, Any] = {
        "parallel": executor.parallel,
        "tools": [name for name in search.operators if name.startswith(TOOL)],
    }
    if executor.name == "simulated":
        number = name.removeprefix("simulated").lstrip("-")
        if number and not number.isdigit():
            raise UserError(f"data={name}: write `simulated`, or `simulated-N` for world N")
        seed = int(number) if number else executor.seed
        return SimulatedExecutor.of(seed, count, split, latency_s=executor.latency_s, **common)
    if executor.name == "recorded":
        return RecordedExecutor.of(executor.table or "", name, count, split, parallel=executor.parallel)
    return _chat_executor(config, name, count, split, **common)


def chat_settings(where: str, told: Mapping[str, Any]) -> ChatSettings:
    """Validate the settings of a chat model, its key and its price, before anything is paid for."""
    from toolwright.config.validate import validate
    from toolwright.providers import check

    settings = validate(ChatSettings, dict(told), origin=lambda key: f"{where}.{key}")
    check(settings)
    return settings


SIMULATED_OPERATORS = ("Custom", "AnswerGenerate", "Programmer", "ScEnsemble", "Vote", "Revise", "Format")


@dataclass(frozen=True, kw_only=True)
class SimulatedExecutor(Executor):
    """A simulated model on its simulated tasks."""

    seed: int
    latency_s: float

    @classmethod
    def of(
        cls, seed: int, count: int, split: Split = "validation", *, latency_s: float = 0.0, **common: Any
    ) -> Self:
        return cls(
            setting=f"simulated-{seed}/{split}",
            kind="math",
            tasks=World(seed).tasks(count, split=split),
            operators=SIMULATED_OPERATORS,
            prompts=PROMPTS,
            offers=frozenset(),
            seed=seed,
            latency_s=latency_s,
            **common,
        )

    def open(self) -> OpenChat:
        from toolwright.config import schema
        from toolwright.rewards import Scorer

        world = World(self.seed)
        chat: ChatModel = SimulatedChat(world, latency_s=self.latency_s)
        if self.cost_limit is not None:
            price = Price(input=world.price_in, output=world.price_out)
            chat = Budgeted(chat, self.cost_limit.open(), price=price)
        scorer = Scorer(schema.Reward(workers=1), default="numeric")
        return OpenChat(self, chat, scorer, SimulatedRunner(), seed=lambda repeat: seed_of(self.seed, repeat))


MATH = ("Custom", "ScEnsemble", "Vote", "Programmer", "Review", "Revise", "Format")
CODE = ("Custom", "CustomCodeGenerate", "ScEnsemble", "Test", "Revise")
COMPARES_WORDS = ("em", "f1", "drop")  # scorers of answers in words; data sets have further names of them
QUESTIONS = ("Custom", "AnswerGenerate", "ScEnsemble", "Vote", "Revise", "Format")


@dataclass(frozen=True, kw_only=True)
class ChatExecutor(Executor):
    """A chat model on a data set. `chat` is the model's settings as JSON."""

    chat: str
    scorer: str
    temperature: float
    max_tokens: int

    def open(self) -> OpenChat:
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
        return OpenChat(self, chat, scorer, CodeSandbox(), seed=lambda repeat: repeat, **sampling)


def _chat_executor(
    config: WorkflowConfig, name: str, count: int, split: Split, **common: Any
) -> ChatExecutor:
    own = config.executor
    data = load(
        name,
        folder=Path(config.search.folder),
        validation_size=count if split == "validation" else None,
        test_size=count if split == "test" else None,
        seed=config.run.seed,
    )
    chat = chat_settings("executor.chat", own.chat)
    depends = {**chat.identity(), "max_tokens": own.max_tokens, "data": data.digest, "scorer": data.scorer}
    told = json.dumps(depends, sort_keys=True, default=str).encode()
    server = f" at {chat.base_url}" if chat.base_url else ""
    kind = kind_of_problems(data)
    return ChatExecutor(
        setting=f"{name}/{split} with {chat.provider}:{chat.model}{server}, "
        f"temperature {own.temperature:g}, {hashlib.blake2b(told, digest_size=6).hexdigest()}",
        kind=kind,
        tasks=data.validation if split == "validation" else data.test,
        operators={"code": CODE, "question": QUESTIONS}.get(kind, MATH),
        prompts=PROMPTS if kind != "code" else {},
        offers=data.offers,
        chat=chat.model_dump_json(),
        scorer=data.scorer,
        temperature=own.temperature,
        max_tokens=own.max_tokens,
        **common,
    )


def kind_of_problems(data: DataSet) -> str:
    """The kind of problems of a data set: math, code or question."""
    from toolwright.rewards import SCORERS

    if "entry_point" in data.offers:
        return "code"
    if data.scorer not in SCORERS.names():
        return "math"
    words = {SCORERS.get(name).target for name in COMPARES_WORDS}
    return "question" if SCORERS.get(data.scorer).target in words else "math"


@dataclass(frozen=True, kw_only=True)
class RecordedExecutor(Executor):
    """A recorded table in place of a model. Searches on it reach the recorded workflows alone."""

    recorded: RecordedTable

    @classmethod
    def of(cls, file: str, name: str, count: int, split: Split = "validation", **common: Any) -> Self:
        tables = load_tables_once(file)
        if name not in tables:
            raise UserError(f"{file} has no table of {name!r}; {nearest(name, tables)}")
        table = tables[name]
        known = table.tasks[split]
        if count > len(known):
            key = "search.tasks" if split == "validation" else "search.held_out"
            raise UserError(
                f"{file} has {len(known)} {split} tasks of {name}, not {count}: "
                f"set {key}={len(known)} or less"
            )
        return cls(
            setting=f"{table.setting}, recorded, {split}",
            kind=table.kind,
            tasks=[Task(id=task, prompt=[]) for task in known[:count]],
            operators=table.operators,
            prompts=table.prompts,
            offers=None,
            recorded=table,
            **common,
        )

    def open(self) -> OpenTable:
        return OpenTable(self.recorded)


class OpenTable:
    """Looks the runs up in a table."""

    def __init__(self, table: RecordedTable) -> None:
        self.table = table

    async def run(self, workflow: Workflow, task: Task, repeat: int) -> WorkflowOutcome:
        return self.table.outcome(workflow, task.id, repeat)

    async def close(self) -> None:
        """Nothing is open."""
