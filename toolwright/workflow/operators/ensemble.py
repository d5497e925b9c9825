"""Ensembles of solutions: a model that finds what most agree on (https://arxiv.org/abs/2311.17311), its votes
over shuffled solutions (MedPrompt, https://arxiv.org/abs/2311.16452), and a count of the final answers
without a model (self-consistency, https://arxiv.org/abs/2203.11171)."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from toolwright.rewards.answers import boxed, tagged, words
from toolwright.workflow.operators import (
    OPERATORS,
    Inputs,
    NodeSetting,
    Operator,
    Port,
    Settings,
    letter,
)

if TYPE_CHECKING:
    from toolwright.workflow.interpreter import Step

ASK = """\
Below is a question with several solutions to it. Compare them, and find the answer that most agree on.

Question:
{problem}

{solutions}

Which solution states that answer best? Put its letter, and nothing else, between <solution_letter> and
</solution_letter>.
"""


@OPERATORS.register("ScEnsemble")
class ScEnsemble(Operator):
    """Returns the one of several solutions that most of them agree with, in one call."""

    name = "ScEnsemble"
    ports = {"solutions": Port("texts", "previous"), "problem": Port(source="problem")}
    fields = {"response": "text"}

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        solutions: list[str] = inputs["solutions"]
        if len(solutions) == 1:
            return {"response": solutions[0]}
        reply = await step.ask(ASK.format(problem=inputs["problem"], solutions=_lettered(solutions)))
        chosen = letter(reply, "solution_letter", len(solutions))
        if chosen is None:  # counted by hand, then: words of several solutions seldom agree, answers may
            step.note("no letter could be read; the most frequent solution was taken")
            most = Counter(text.strip() for text in solutions).most_common(1)[0][0]
            return {"response": most}
        return {"response": solutions[chosen]}


VOTE = """\
Below is a question with several solutions to it. Work through them one by one and find the best.

Question:
{problem}

{solutions}

Put the letter of the best solution, and nothing else, between <solution_letter> and </solution_letter>.
"""


@OPERATORS.register("MdEnsemble")
class MdEnsemble(Operator):
    """Asks several times for the best of the solutions, shuffled each time; the most votes win."""

    name = "MdEnsemble"
    ports = {"solutions": Port("texts", "previous"), "problem": Port(source="problem")}
    fields = {"solution": "text"}
    settings = {"votes": NodeSetting(default=5, most=9)}

    def calls(self, settings: Settings) -> int:
        return self.setting(settings, "votes")

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        solutions: list[str] = inputs["solutions"]
        votes: Counter[int] = Counter()
        for vote in range(self.setting(settings, "votes") if len(solutions) > 1 else 0):
            order = random.Random(f"{step.task.id}/{step.sample}/{vote}").sample(
                range(len(solutions)), len(solutions)
            )
            shown = _lettered([solutions[place] for place in order])
            reply = await step.ask(VOTE.format(problem=inputs["problem"], solutions=shown))
            chosen = letter(reply, "solution_letter", len(solutions))
            if chosen is not None:
                votes[order[chosen]] += 1
        if not votes:
            if len(solutions) > 1:
                step.note("no vote could be read; the first solution was taken")
            return {"solution": solutions[0]}
        return {"solution": solutions[votes.most_common(1)[0][0]]}


@OPERATORS.register("Vote")
class Vote(Operator):
    """Returns the first of the solutions whose final answer is the most frequent. Makes no call."""

    name = "Vote"
    ports = {"solutions": Port("texts", "previous")}
    fields = {"response": "text"}

    def calls(self, settings: Settings) -> int:
        return 0

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        solutions: list[str] = [text for text in inputs["solutions"] if text.strip()] or [""]
        answers = [final_answer(text) for text in solutions]
        most = Counter(answers).most_common(1)[0][0]  # of equals, the one that was said first
        return {"response": solutions[answers.index(most)]}


_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def final_answer(text: str) -> str:
    """What a solution comes to, to compare it with others: what it boxes or tags, or else its last number, or
    its words."""
    said = boxed(text) or tagged(text)
    if said is None and (numbers := _NUMBER.findall(text)):
        said = numbers[-1]
    said = text if said is None else said
    if _NUMBER.fullmatch(said.strip().strip("$.")):
        return f"{float(said.strip().strip('$.').replace(',', '')):g}"
    return " ".join(words(said)) or said.strip()


def _lettered(solutions: list[str]) -> str:
    return "\n\n".join(f"{chr(ord('A') + i)}:\n{text}" for i, text in enumerate(solutions))
