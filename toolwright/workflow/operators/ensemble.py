"""Self-consistency: of several solutions the one that most agree with (https://arxiv.org/abs/2311.17311)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from toolwright.workflow.operators import OPERATORS, Inputs, Operator, Port, Settings, letter

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
    name = "ScEnsemble"
    ports = {"solutions": Port("texts", "previous"), "problem": Port(source="problem")}
    fields = {"response": "text"}

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        solutions: list[str] = inputs["solutions"]
        if len(solutions) == 1:
            return {"response": solutions[0]}
        shown = "\n\n".join(f"{chr(ord('A') + i)}:\n{text}" for i, text in enumerate(solutions))
        reply = await step.ask(ASK.format(problem=inputs["problem"], solutions=shown))
        chosen = letter(reply, "solution_letter", len(solutions))
        if chosen is None:  # counted by hand, then: words of several solutions seldom agree, answers may
            step.note("no letter could be read; the most frequent solution was taken")
            most = Counter(text.strip() for text in solutions).most_common(1)[0][0]
            return {"response": most}
        return {"response": solutions[chosen]}
