"""Where runs are made: a simulated model, or a real one on a data set. Data alone, until it is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from toolwright.failures import UserError
from toolwright.providers import ChatModel, close
from toolwright.providers.budget import Budgeted
from toolwright.providers.settings import ChatSettings, Price
from toolwright.trajectory import Task
from toolwright.workflow.config import WorkflowConfig
from toolwright.workflow.datasets import load
from toolwright.workflow.evaluate import Evaluator, TaskEvaluator
from toolwright.workflow.program import WorkflowLimits
from toolwright.workflow.purse import Purse
from toolwright.workflow.run import CodeRunner, WorkflowInterpreter, seed_of
from toolwright.workflow.simulate import PROMPTS, SimulatedChat, SimulatedRunner, World

if TYPE_CHECKING:
    from toolwright.rewards import Scorer


class Site(Protocol):
    """Where runs are made: data alone, opened in the process that makes them."""

    @property
    def limits(self) -> WorkflowLimits: ...

    @property
    def parallel(self) -> int:
        """Runs that a worker makes side by side."""
        ...

    @property
    def setting(self) -> str:
        """What a score depends on, in words."""
        ...

    @property
    def kind(self) -> str:
        """Of problems: math, code or question."""
        ...

    @property
    def operators(self) -> Sequence[str]: ...

    @property
    def prompts(self) -> Mapping[str, str]:
        """That edits may give to operators, by name."""
        ...

    @property
    def offers(self) -> Set[str] | None:
        """What tasks bring for operators that need it; None: whatever that is."""
        ...

    def tasks(self) -> Sequence[Task]: ...

    def open(self) -> Opened: ...


class Opened:
    """A site in the process that makes its runs: an evaluator for each repeat, over one chat, one scorer and
    one place to run code. The same run made again in another repeat is another draw."""

    def __init__(
        self, chat: ChatModel, scorer: Scorer, runner: CodeRunner, evaluator: Callable[[int], Evaluator]
    ) -> None:
        self.chat, self.scorer, self.runner = chat, scorer, runner
        self._evaluator = evaluator
        self._made: dict[int, Evaluator] = {}

    def __call__(self, repeat: int) -> Evaluator:
        if repeat not in self._made:
            self._made[repeat] = self._evaluator(repeat)
        return self._made[repeat]

    async def close(self) -> None:
        """All of it, also where one of them fails to."""
        async with AsyncExitStack() as ending:
            ending.callback(self.scorer.close)
            ending.push_async_callback(close, self.chat)
            ending.push_async_callback(self.runner.close)


def build(
    config: WorkflowConfig,
    name: str,
    *,
    held_out: bool = False,
    cache: str | None = None,
    purse: Purse | None = None,
) -> Site:
    """The site of one of the configuration's data sets."""
    search, executor = config.search, config.executor
    if executor.name == "simulated":
        number = name.removeprefix("simulated").lstrip("-")
        if number and not number.isdigit():
            raise UserError(f"data={name}: write `simulated`, or `simulated-N` for world N")
        return SimulatedSite(
            seed=int(number) if number else executor.seed,
            count=search.held_out if held_out else search.tasks,
            split="test" if held_out else "validation",
            latency_s=executor.latency_s,
            parallel=executor.parallel,
            purse=purse,
        )
    found = load(
        name,
        folder=Path(search.folder),
        validation_size=None if held_out else search.tasks,
        test_size=search.held_out if held_out else None,
        seed=config.run.seed,
    )
    chat = chat_settings("executor.chat", executor.chat)
    return DataSite(
        name=name,
        chosen=tuple(found.test if held_out else found.validation),
        scorer=found.scorer,
        found=found.offers | {"sandbox"},
        split="test" if held_out else "validation",
        chat=chat.model_dump_json(),
        temperature=executor.temperature,
        max_tokens=executor.max_tokens,
        cache=cache,
        parallel=executor.parallel,
        purse=purse,
    )


def chat_settings(where: str, told: Mapping[str, Any]) -> ChatSettings:
    """Checked with its key and its price: what is missing is said before anything is paid for."""
    from toolwright.config.validate import validate
    from toolwright.providers import check

    settings = validate(ChatSettings, dict(told), origin=lambda key: f"{where}.{key}")
    check(settings)
    return settings


SIMULATED_OPERATORS = ("Custom", "AnswerGenerate", "Programmer", "ScEnsemble", "Revise", "Format")


@dataclass(frozen=True)
class SimulatedSite:
    """One world of the simulator's family."""

    seed: int
    count: int
    split: str = "validation"
    latency_s: float = 0.0
    parallel: int = 16
    purse: Purse | None = None  # what calls are paid from, where that is limited
    limits: WorkflowLimits = field(default_factory=WorkflowLimits)

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
    def offers(self) -> Set[str] | None:
        return None

    def tasks(self) -> Sequence[Task]:
        return World.drawn(self.seed).tasks(self.count, split=self.split)

    def open(self) -> Opened:
        from toolwright.config import schema
        from toolwright.rewards import Scorer

        world = World.drawn(self.seed)
        chat: ChatModel = SimulatedChat(world, latency_s=self.latency_s)
        if self.purse is not None:
            price = Price(input=world.price_in, output=world.price_out)
            chat = Budgeted(chat, self.purse.open(), price=price)
        scorer, runner = Scorer(schema.Reward(workers=1), default="numeric"), SimulatedRunner()

        def evaluator(repeat: int) -> Evaluator:
            own = WorkflowInterpreter(
                chat, runner=runner, limits=self.limits, seed=seed_of(self.seed, repeat)
            )
            return TaskEvaluator(own, scorer, parallel=self.parallel)

        return Opened(chat, scorer, runner, evaluator)


MATH = ("Custom", "ScEnsemble", "Programmer", "Review", "Revise", "Format")
CODE = ("Custom", "CustomCodeGenerate", "ScEnsemble", "Test", "Revise")
QUESTIONS = ("Custom", "AnswerGenerate", "ScEnsemble", "Revise", "Format")


@dataclass(frozen=True)
class DataSite:
    """A data set and a chat model. `chat` is the model's settings, `cache` where its answers are kept."""

    name: str
    chosen: tuple[Task, ...]
    scorer: str
    found: frozenset[str]
    split: str
    chat: str
    temperature: float
    max_tokens: int
    cache: str | None = None
    parallel: int = 16
    purse: Purse | None = None  # what calls are paid from, where that is limited
    limits: WorkflowLimits = field(default_factory=WorkflowLimits)

    @property
    def setting(self) -> str:
        model = ChatSettings.model_validate_json(self.chat)
        return f"{self.name}/{self.split} with {model.provider}:{model.model} at {self.temperature:g}"

    @property
    def kind(self) -> str:
        if "entry_point" in self.found:
            return "code"
        return "question" if self.scorer in ("em", "f1", "drop", "hotpotqa") else "math"

    @property
    def operators(self) -> Sequence[str]:
        return {"code": CODE, "question": QUESTIONS}.get(self.kind, MATH)

    @property
    def prompts(self) -> Mapping[str, str]:
        return PROMPTS if self.kind != "code" else {}

    @property
    def offers(self) -> Set[str] | None:
        return self.found

    def tasks(self) -> Sequence[Task]:
        return self.chosen

    def open(self) -> Opened:
        from toolwright.config import schema
        from toolwright.providers import open_chat
        from toolwright.rewards import Scorer
        from toolwright.workflow.code import CodeSandbox

        chat = open_chat(
            ChatSettings.model_validate_json(self.chat),
            budget=None if self.purse is None else self.purse.open(),
            cache=None if self.cache is None else Path(self.cache),
        )
        scorer = Scorer(schema.Reward(), default=self.scorer)
        runner = CodeSandbox()

        def evaluator(repeat: int) -> Evaluator:
            own = WorkflowInterpreter(
                chat,
                runner=runner,
                limits=self.limits,
                seed=repeat,
                temperature=self.temperature,
                max_tokens=self.max_tokens,
            )
            return TaskEvaluator(own, scorer, offers=self.offers, parallel=self.parallel)

        return Opened(chat, scorer, runner, evaluator)
