"""Worlds to search in that know nothing of the search: three families of executors, drawn from a seed.

They read a workflow's graph and nothing else of the project: no operator's code, no prompt, no feature of
the value, no line of `toolwright.workflow.simulate`. A step is right with a probability of its own; what
differs between the families is where the gains lie.

    synergy    operators are worth little alone, and much or nothing after certain others
    deceptive  what helps at once leads away: one operator that is bad alone is best before a certain other
    prompts    structure matters little; what each prompt is worth with each operator is hidden
"""

from __future__ import annotations

import math
import random
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from toolwright.workflow.graph import Node, Ref
from toolwright.workflow.pool import Payment
from toolwright.workflow.program import Workflow
from toolwright.workflow.tree import Run

FAMILIES = ("synergy", "deceptive", "prompts")
OPERATORS = ("Custom", "AnswerGenerate", "Programmer", "ScEnsemble", "Vote", "Revise", "Format")
SOLVERS = ("Custom", "AnswerGenerate", "Programmer", "Revise")
ENSEMBLES = ("ScEnsemble", "MdEnsemble", "Vote")
RIGHT, POPULAR = 0, 1  # answers; any other number is a mistake that nobody else makes
DOLLARS = {"Custom": 3e-4, "AnswerGenerate": 4e-4, "Programmer": 3e-4, "Format": 1e-4}
TEST = 1_000_000  # the first test task


@dataclass(frozen=True)
class Said:
    """What a step says: an answer, whether a scorer can read it, and who worked on it."""

    answer: int | None  # None: nothing
    tidy: bool = True
    by: str = ""


class World:
    """A data set and its model."""

    def __init__(self, family: str, seed: int) -> None:
        self.family, self.seed = family, seed
        rng = self._rng("world")
        self.setting = f"{family}-{seed}"
        self._truth: dict[str, float] = {}
        self.level, self.spread = rng.uniform(-0.6, 0.6), rng.uniform(0.8, 1.8)
        self.taste = rng.uniform(0.3, 1.2)  # how far a way of asking suits some tasks and not others
        self.popular, self.untidy = rng.uniform(0.2, 0.6), rng.uniform(0.0, 0.2)
        self.judging, self.crash = rng.uniform(0.55, 0.85), rng.uniform(0.05, 0.3)
        self.choosing = rng.uniform(0.8, 1.0)
        alone, pairs, worded = {
            "synergy": (0.3, 1.0, 0.2),
            "deceptive": (0.3, 0.2, 0.2),
            "prompts": (0.2, 0.2, 0.8),
        }[family]
        self.alone = {name: rng.gauss(0.0, alone) for name in SOLVERS}
        self.worded, self.also = worded, worded / 2
        whole = (*SOLVERS, *ENSEMBLES, "Format")
        self.after = {(a, b): rng.gauss(0.0, pairs) for a in whole for b in SOLVERS}
        if family == "deceptive":
            weak, strong = rng.sample(("AnswerGenerate", "Programmer", "Custom"), 2)
            self.alone[weak] -= rng.uniform(0.6, 1.2)
            self.after[weak, strong] += rng.uniform(1.4, 2.4)

    def _rng(self, *names: object) -> random.Random:
        return random.Random(zlib.crc32(repr((self.family, self.seed, *names)).encode()))

    @cache  # noqa: B019 - a world lives as long as its searches
    def difficulty(self, task: int) -> float:
        return self._rng("task", task).gauss(-self.level, self.spread)

    @cache  # noqa: B019
    def suits(self, task: int, operator: str, words: str) -> float:
        return self._rng("suits", task, operator, words).gauss(0.0, self.taste)

    @cache  # noqa: B019
    def worth(self, operator: str, words: str) -> float:
        if not words:
            return 0.0
        own = self._rng("prompt", words).gauss(0.0, self.worded)
        return own + self._rng("prompt", operator, words).gauss(0.0, self.also)

    def solved(self, call: Call, operator: str, words: str, shown: Said | None) -> int:
        odds = self.alone[operator] + self.worth(operator, words)
        odds += self.suits(call.task, operator, words) - self.difficulty(call.task)
        if shown is not None and shown.answer is not None:
            odds += self.after[shown.by, operator] + (0.8 if shown.answer == RIGHT else -0.8)
        if call.luck() < 1 / (1 + math.exp(-odds)):
            return RIGHT
        return POPULAR if call.luck() < self.popular else 2 + int(call.luck() * 1e9)

    def outcome(self, workflow: Workflow, task: int, repeat: int) -> tuple[float, int, float]:
        """Score, calls and dollars of one run."""
        attempt = Attempt(self, workflow, task, repeat)
        said = attempt.last()
        return float(said.answer == RIGHT and said.tidy), attempt.calls, attempt.dollars

    def truth(self, workflow: Workflow, count: int = 1500) -> float:
        """The score on test tasks, which no search sees."""
        if workflow.fingerprint not in self._truth:
            scores = [self.outcome(workflow, TEST + n, 0)[0] for n in range(count)]
            self._truth[workflow.fingerprint] = sum(scores) / count
        return self._truth[workflow.fingerprint]


class Call:
    """The draws of one model call: equal calls have equal draws, whichever workflow makes them."""

    def __init__(self, world: World, task: int, *names: object) -> None:
        self.task = task
        self._state = zlib.crc32(repr((world.setting, task, *names)).encode())

    def luck(self) -> float:
        """Uniform in [0, 1). A linear congruential generator: to seed a `random.Random` would take longer."""
        for _ in range(2):
            self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 11) / 2**53


class Attempt:
    """One workflow on one task."""

    def __init__(self, world: World, workflow: Workflow, task: int, repeat: int) -> None:
        self.world, self.workflow, self.task, self.repeat = world, workflow, task, repeat
        self.calls, self.dollars = 0, 0.0
        self._made: dict[str, list[Said]] = {}
        self._flags: dict[str, bool] = {}

    def last(self) -> Said:
        return self._shown(self.workflow.output) or Said(None)

    def _shown(self, pieces: Sequence[str | Ref]) -> Said | None:
        """The solution among the pieces; None: the task alone."""
        for piece in pieces:
            if isinstance(piece, Ref) and piece.node != "task":
                return self._node(piece.node)[0]
        return None

    def _node(self, name: str) -> list[Said]:
        if name not in self._made:
            node = self.workflow.by_name[name]
            self._made[name] = [self._run(node, sample) for sample in range(node.repeat)]
        return self._made[name]

    def _call(self, node: Node, sample: int, *names: object) -> Call:
        self.calls += 1
        self.dollars += DOLLARS.get(node.operator, 2e-4)
        words = self.workflow.prompts.get(node.prompt, "")
        return Call(self.world, self.task, node.operator, words, sample, self.repeat, *names)

    def _run(self, node: Node, sample: int) -> Said:
        world, words = self.world, self.workflow.prompts.get(node.prompt, "")
        kind = node.operator
        if kind == "Choose":
            (on,) = node.inputs["on"]
            assert isinstance(on, Ref)
            first = self._node(on.node)[0]
            held = self._flags.get(on.node, first.answer is not None)
            return self._shown(node.inputs.get("then" if held else "otherwise", ())) or Said(None)
        if kind in ENSEMBLES:
            return self._ensemble(node, sample)
        shown = next((s for pieces in node.inputs.values() if (s := self._shown(pieces))), None)
        call = self._call(node, sample, *(() if shown is None else (shown.answer, shown.by)))
        if kind == "Review":
            assert shown is not None
            self._flags[node.name] = (call.luck() < world.judging) == (shown.answer == RIGHT)
            return Said(shown.answer, shown.tidy, shown.by)
        if kind == "Format":
            return Said(shown.answer if shown else None, call.luck() < 0.98, shown.by if shown else kind)
        if kind == "Programmer" and call.luck() < world.crash:
            return Said(None, by=kind)
        tidy = kind in ("AnswerGenerate", "Programmer") or call.luck() >= world.untidy
        return Said(world.solved(call, kind, words, shown), tidy, kind)

    def _ensemble(self, node: Node, sample: int) -> Said:
        given = [
            said
            for piece in node.inputs["solutions"]
            if isinstance(piece, Ref)
            for said in self._node(piece.node)
            if said.answer is not None
        ]
        if not given:
            return Said(None, by=node.operator)
        most = Counter(said.answer for said in given).most_common(1)[0][0]
        chosen = next(said for said in given if said.answer == most)
        if node.operator != "Vote" and len(given) > 1:
            call = self._call(node, sample, *(said.answer for said in given))
            chosen = chosen if call.luck() < self.world.choosing else given[int(call.luck() * len(given))]
        return Said(chosen.answer, chosen.tidy, node.operator)


class AnyWorld(Protocol):
    setting: str

    def outcome(self, workflow: Workflow, task: int, repeat: int) -> tuple[float, int, float]: ...


class WorldRunner:
    """Makes a search's runs in a world, until what it may spend in `unit` is spent. Tasks are called by their
    number."""

    def __init__(self, world: AnyWorld, *, unit: str = "runs", most: float = math.inf) -> None:
        self.world, self.unit, self.most, self.spent = world, unit, most, 0.0

    async def run(self, workflow: Workflow, runs: Sequence[Run]) -> dict[Run, Payment]:
        made = {}
        for task, repeat in runs:
            if self.spent >= self.most:
                break
            score, calls, dollars = self.world.outcome(workflow, int(task), repeat)
            cost = {"runs": 1.0, "calls": float(calls), "money": dollars}[self.unit]
            self.spent += cost
            own = (self.world.setting, workflow.fingerprint, task, repeat, score, cost, calls)
            made[task, repeat] = Payment(*own)
        return made
