"""Where runs are made: a simulated model, or a real one on a data set. Data alone, until it is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from toolwright.config.workflow import WorkflowConfig
from toolwright.failures import UserError
from toolwright.trajectory import Task
from toolwright.workflow.evaluate import Evaluator, TaskEvaluator
from toolwright.workflow.program import Limits
from toolwright.workflow.run import Interpreter
from toolwright.workflow.simulate import PROMPTS, SimulatedChat, SimulatedRunner, World


class Site(Protocol):
    """Where runs are made: data alone, opened in the process that makes them."""

    limits: Limits
    parallel: int  # runs that a worker makes side by side

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

    def open(self) -> Callable[[int], Evaluator]:
        """The evaluator of each repeat; the same run made again in another repeat is another draw."""
        ...


def build(config: WorkflowConfig, name: str, *, held_out: bool = False) -> Site:
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
        )
    raise UserError("executor.name=chat is not there yet")


SIMULATED_OPERATORS = ("Custom", "AnswerGenerate", "Programmer", "ScEnsemble", "Revise", "Format")


@dataclass(frozen=True)
class SimulatedSite:
    """One world of the simulator's family."""

    seed: int
    count: int
    split: str = "validation"
    latency_s: float = 0.0
    parallel: int = 16
    limits: Limits = field(default_factory=Limits)

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

    def open(self) -> Callable[[int], Evaluator]:
        from toolwright.config import schema
        from toolwright.rewards import Scorer

        chat = SimulatedChat(World.drawn(self.seed), latency_s=self.latency_s)
        scorer = Scorer(schema.Reward(workers=1), default="numeric")

        def evaluator(repeat: int) -> Evaluator:
            own = Interpreter(chat, runner=SimulatedRunner(), limits=self.limits, seed=repeat)
            return TaskEvaluator(own, scorer, parallel=self.parallel)

        return evaluator
