"""Simulated executor models: what each step gets right is drawn, everything else is real.

A `World` is one data set with one model, its parameters drawn from a seed: how hard tasks are, how good each
operator is and on which tasks, how far errors on one task go together, what prompts are worth, what calls
cost. A `SimulatedChat` answers the operators' own prompts in text by that, so interpreter, operators and
scorers run as they do with a real model. Whatever is drawn follows from names: the world's seed, the task,
what is asked and the sample's seed. So neither the order of calls nor the process they are made in changes
an answer.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from toolwright.failures import UserError
from toolwright.providers import ChatReply
from toolwright.trajectory import Task
from toolwright.workflow.interpreter import CodeRun, seed_of
from toolwright.workflow.operators import ensemble, generate, programs, review

# Prompts that a search may pick from. In every world each has a worth: some of it is its own, some is drawn.
_WORDS = {
    "STEPS_PROMPT": (0.5, "Solve the problem step by step, and check every step before the next."),
    "PLAN_PROMPT": (0.4, "First write a short plan, then carry it out."),
    "ESTIMATE_PROMPT": (0.1, "Estimate the result first, then compute it, and compare the two."),
    "BRIEF_PROMPT": (-0.6, "Give the result at once, without working."),
    "TEACHER_PROMPT": (0.0, "Explain the solution as a teacher would to a class."),
    "EQUATIONS_PROMPT": (0.3, "Write down what is known as equations and solve them."),
}
PROMPTS: Mapping[str, str] = {name: f"{words}\n" for name, (_, words) in _WORDS.items()}


class World:
    """The latent model, drawn from a seed. Worths are log-odds: p(right) = σ(skill + prompt − difficulty −
    effects). With `code`, answers are functions, and there are tests."""

    def __init__(self, seed: int, *, code: bool = False) -> None:
        self.seed, self.code = seed, code
        rng = random.Random(seed_of("world", seed))
        self.skill = {
            "Custom": rng.gauss(0.0, 0.3),
            "AnswerGenerate": rng.gauss(0.3, 0.4),
            "Programmer": rng.gauss(0.2, 0.9),
            "CustomCodeGenerate": random.Random(seed_of("code", seed)).gauss(0.2, 0.4),
        }
        self.spread = rng.uniform(1.0, 2.0)  # of the tasks' difficulty
        self.idiosyncrasy = rng.uniform(0.5, 1.5)  # how far a way of solving suits some tasks and not others
        self.attraction = rng.uniform(0.2, 0.7)  # the share of wrong answers that are one popular mistake
        self.untidiness = rng.uniform(0.0, 0.3)  # the share of free answers that a scorer misreads
        self.choosing = rng.uniform(0.85, 0.99)  # how often an ensemble sees the majority
        self.sensitivity = rng.uniform(0.3, 0.85)  # of a review, for solutions that are wrong
        self.specificity = rng.uniform(0.7, 0.97)  # and for those that are right
        self.mending = rng.gauss(0.2, 0.5)  # what a revision gains over a first try
        self.anchoring = rng.uniform(0.3, 0.8)  # how often a second look only repeats what it was shown
        self.prompt_noise = rng.uniform(0.2, 0.5)
        self.price_in, self.price_out = rng.uniform(0.1, 0.5), rng.uniform(0.4, 2.0)  # of a million tokens
        self.hiding = rng.uniform(0.2, 0.6)  # the share of wrong programs that pass the public tests

    @lru_cache(maxsize=65536)  # noqa: B019 - a world lives as long as its searches
    def latent(self, number: int) -> _Latent:
        rng = random.Random(seed_of("task", self.seed, number))
        answer = rng.randrange(100, 1000)
        return _Latent(answer, answer + rng.randrange(1, 50), rng.gauss(0.0, self.spread))

    @lru_cache(maxsize=65536)  # noqa: B019
    def effect(self, number: int, way: str) -> float:
        """How a way of solving suits one task: the same whenever it is taken, so its errors go together."""
        return random.Random(seed_of("effect", self.seed, number, way)).gauss(0.0, self.idiosyncrasy)

    @lru_cache(maxsize=4096)  # noqa: B019
    def worth(self, words: str) -> float:
        """What a prompt is worth."""
        own = next((worth for worth, known in _WORDS.values() if known == words), 0.0)
        noise = random.Random(seed_of("prompt", self.seed, words)).gauss(0.0, self.prompt_noise)
        return own + noise if words else 0.0

    def tasks(self, count: int, *, split: str = "validation") -> list[Task]:
        """As many as one likes; those of other splits are others."""
        first = {"validation": 0, "test": 1_000_000}.get(split)
        if first is None:
            raise UserError(f"a simulated data set has the splits validation and test, not {split!r}")
        return [self._task(first + number) for number in range(count)]

    def _task(self, number: int) -> Task:
        """The answer is a number, or a function that adds it: the last number of either is what is scored."""
        answer = self.latent(number).answer
        asked = "which function f(x) adds it?" if self.code else "which number is meant?"
        tests = {"entry_point": "f", "public_tests": [f"assert candidate(1) == {answer + 1}"]}
        return Task(
            id=f"sim-{self.seed}-{number}",
            prompt=[{"role": "user", "content": f"Problem sim-{self.seed}-{number}: {asked}"}],
            ground_truth=str(answer),
            data_source="numeric",
            extra_info=tests if self.code else {},
        )


@dataclass(frozen=True)
class _Latent:
    """What a task is in this world, before anybody tries it."""

    answer: int
    mistake: int  # the popular one
    difficulty: float


_PROBLEM = re.compile(r"Problem sim-(\d+)-(\d+): which [^?]*\?")
_STATED = re.compile(r"answer is (\d+)")
_NUMBER = re.compile(r"\d+")
_LETTERED = re.compile(r"(?:^|\n\n)[A-P]:\n")
_CODE = generate.CODE_PROMPT.format(entry_point="f")
_FUNCTION = re.compile(r"return x \+ (\d+) if x < 10")
_EXPECTED = re.compile(r"candidate\(1\) == (\d+)")
_CRASHES = 0.15  # the share of programs that end with an error
# Tokens that a model of this kind writes, reasoning included; the text here is only their end.
_WRITTEN = {
    "Custom": 220,
    "AnswerGenerate": 260,
    "CustomCodeGenerate": 240,
    "Programmer": 180,
    "Test": 260,
    "ScEnsemble": 80,
    "Review": 160,
    "Revise": 240,
    "Format": 20,
}


class SimulatedChat:
    """A chat model of one world. `latency_s` makes every call take so long, as a remote model's would."""

    def __init__(self, world: World, *, latency_s: float = 0.0) -> None:
        self.world, self.latency_s = world, latency_s
        self.name = f"simulated-{world.seed}"
        self.waits = latency_s > 0

    async def complete(
        self,
        messages: list[dict[str, Any]],
        *,
        temperature: float,
        max_tokens: int,
        seed: int | None = None,
        stop: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> ChatReply:
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        prompt = messages[-1]["content"]
        operator, text = self.answered(prompt, seed or 0)
        prompt_tokens, written = len(prompt) // 4 + 1, min(_WRITTEN[operator], max_tokens)
        cost = (prompt_tokens * self.world.price_in + written * self.world.price_out) / 1e6
        return ChatReply(text, (), prompt_tokens, written, cost, self.latency_s)

    def answered(self, prompt: str, seed: int) -> tuple[str, str]:
        """Which operator asked, and what it is told."""
        found = _PROBLEM.search(prompt)
        if found is None or int(found[1]) != self.world.seed:
            raise UserError(f"a simulated model of world {self.world.seed} was asked {prompt[:80]!r}")
        asked = _Question(self.world, int(found[2]), seed)
        for form in _FORMS:
            parts = form.read(prompt)
            if parts is not None:
                return form.operator, form.answer(asked, parts)
        before, after = prompt[: found.start()], prompt[found.end() :]
        if self.world.code and after.endswith(_CODE):
            return "CustomCodeGenerate", _coded(asked, before, after.removesuffix(_CODE))
        return "Custom", _free(asked, before, after)


class _Question:
    """One call: its task, and what is drawn for it."""

    def __init__(self, world: World, number: int, seed: int) -> None:
        self.world, self.number, self.latent = world, number, world.latent(number)
        bits = seed_of("call", world.seed, number, seed)
        self.luck, self.error, self.other = (((bits >> shift) & 0x1FFFFF) / 0x200000 for shift in (0, 21, 42))

    def solved(self, operator: str, words: str = "", *, bonus: float = 0.0) -> int:
        """A fresh try: the answer, the popular mistake, or some other number."""
        world, latent = self.world, self.latent
        way = f"{operator} {words}"
        odds = world.skill[operator] + bonus + world.worth(words)
        odds -= latent.difficulty + world.effect(self.number, way)
        if self.luck < 1 / (1 + math.exp(-odds)):
            return latent.answer
        return latent.mistake if self.error < world.attraction else 1000 + int(self.error * 8999)

    def function(self, result: int) -> str:
        """The answer as code; a wrong one may be right for small numbers, which are all that is tested."""
        right = self.latent.answer
        small = right if result != right and (self.other * 6101) % 1 < self.world.hiding else result
        return f"```python\ndef f(x):\n    return x + {small} if x < 10 else x + {result}\n```"

    def second(self, operator: str, words: str, shown: int | None, *, bonus: float = 0.0) -> int:
        """A try by somebody who was shown a solution: often the same again."""
        if shown is not None and self.other < self.world.anchoring:
            return shown
        return self.solved(operator, words, bonus=bonus)


def _free(asked: _Question, before: str, after: str) -> str:
    result = asked.second("Custom", before.strip(), read(after))
    tidy = (asked.other * 7919) % 1 >= asked.world.untidiness
    if asked.world.code:
        return asked.function(result) + ("" if tidy else "\nThat took 3 steps.")
    return f"The answer is {result}{'.' if tidy else ', which took 3 steps.'}"


def _coded(asked: _Question, before: str, after: str) -> str:
    return asked.function(asked.second("CustomCodeGenerate", before.strip(), read(after)))


def _mended(asked: _Question, parts: Mapping[str, str]) -> str:
    """Whoever sees a test fail knows more than a reviewer: the old answer is out."""
    return asked.function(asked.solved("CustomCodeGenerate", "mend", bonus=asked.world.mending))


def _answer(asked: _Question, parts: Mapping[str, str]) -> str:
    found = _PROBLEM.search(parts["input"])
    result = asked.second("AnswerGenerate", "", read(parts["input"][found.end() :]) if found else None)
    return f"<thought>One thing leads to another.</thought>\n<answer>{result}</answer>"


def _program(asked: _Question, parts: Mapping[str, str]) -> str:
    analysis = parts["rest"].partition("\nWhat was found out so far:\n")[2].partition("\nThis was tried:")[0]
    if (asked.other * 104729) % 1 < _CRASHES:
        return "```python\ndef solve():\n    raise ValueError('unfinished')\n```"
    shown = read(analysis)
    half = shown if asked.error < 0.5 else None  # a program is less easily led than a reader
    return f"```python\ndef solve():\n    return {asked.second('Programmer', '', half)}\n```"


def _choice(asked: _Question, parts: Mapping[str, str]) -> str:
    solutions = [text for text in _LETTERED.split(parts["solutions"]) if text.strip()]
    answers = [read(text) for text in solutions]
    if not answers:  # nothing but blanks to choose from
        return "<solution_letter>A</solution_letter>"
    if asked.luck < asked.world.choosing:
        most, _ = Counter(answers).most_common(1)[0]
        place = answers.index(most)
    else:
        place = int(asked.other * len(solutions))
    return f"<solution_letter>{chr(ord('A') + place)}</solution_letter>"


def _remarks(asked: _Question, parts: Mapping[str, str]) -> str:
    world, said = asked.world, read(parts["solution"])
    if said == asked.latent.answer:
        right = asked.luck < world.specificity
    else:  # a mistake that many make is a mistake that many miss, and hard tasks hide theirs
        seen = world.sensitivity * (0.6 if said == asked.latent.mistake else 1.0)
        right = asked.luck >= seen / (1 + math.exp(asked.latent.difficulty - 2))
    if right:
        return "<review_result>true</review_result>"
    return "<review_result>false</review_result>\n<feedback>The result does not fit the question.</feedback>"


def _revision(asked: _Question, parts: Mapping[str, str]) -> str:
    shown = read(parts["solution"]) if asked.error < 0.5 else None
    result = asked.second("Custom", "revise", shown, bonus=asked.world.mending)
    said = asked.function(result) if asked.world.code else f"The answer is {result}."
    return f"<solution>{said}</solution>"


def _formatted(asked: _Question, parts: Mapping[str, str]) -> str:
    said = read(parts["solution"])
    return f"<solution>{'none' if said is None else said}</solution>"


def read(text: str) -> int | None:
    """The answer that a solution states, as a reader finds it whatever a scorer makes of it."""
    stated = _STATED.findall(text) or _NUMBER.findall(text)
    return int(stated[-1]) if stated else None


class _Form:
    """An operator's prompt, read back into what was filled in."""

    def __init__(self, operator: str, template: str, answer: Any) -> None:
        self.operator, self.answer = operator, answer
        self.opening, *rest = re.split(r"\{(\w+)\}", template)
        self.fields = list(zip(rest[::2], rest[1::2], strict=True))

    def read(self, prompt: str) -> dict[str, str] | None:
        if not prompt.startswith(self.opening):
            return None
        at, parts = len(self.opening), {}
        for name, literal in self.fields:
            last = (name, literal) == self.fields[-1]
            end = prompt.rfind(literal) if last else prompt.find(literal, at)
            if end < at:
                return None
            parts[name], at = prompt[at:end], end + len(literal)
        return {**parts, "rest": prompt[at:]}


_FORMS = (
    _Form("ScEnsemble", ensemble.ASK, _choice),
    _Form("Review", review.REVIEW_PROMPT, _remarks),
    _Form("Revise", review.REVISE_PROMPT, _revision),
    _Form("Format", review.FORMAT_PROMPT, _formatted),
    _Form("Test", programs.TEST_PROMPT, _mended),
    _Form("AnswerGenerate", generate.ANSWER_PROMPT, _answer),
    _Form("Programmer", programs.PROGRAM_PROMPT.removesuffix("{problem}\n") + "{problem}", _program),
)


class SimulatedRunner:
    """What the sandbox would say to the programs of a simulated model, without a process for each."""

    async def run(self, code: str) -> CodeRun:
        expected, function = _EXPECTED.search(code), _FUNCTION.search(code)
        if expected:
            passed = function is not None and int(function[1]) + 1 == int(expected[1])
            return CodeRun(passed, trouble="" if passed else "AssertionError")
        returned = re.search(r"^    return (\d+)$", code, re.MULTILINE)
        return CodeRun(True, returned[1]) if returned else CodeRun(False, trouble="ValueError: unfinished")

    async def close(self) -> None:
        """Nothing was started."""
