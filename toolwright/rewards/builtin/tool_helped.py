"""1 if a tool found the answer: it stands in the result of a call that succeeded, and nowhere before that."""

from __future__ import annotations

from typing import Any

from toolwright.images import text_of
from toolwright.rewards import SCORERS
from toolwright.rewards.answers import words
from toolwright.rewards.builtin.numeric import TAIL, numbers


@SCORERS.register("tool_helped", needs=["right"])
def tool_helped(
    ground_truth: Any, prompt: list[dict[str, Any]], turns: list[str], tool_results: list[dict[str, Any]]
) -> float:
    """A part beside the task's own, `reward.parts={task: 1, tool_helped: 0.1}`.

    It counts once, and only where the answer is right. What the policy computed in its head or wrote into the
    call itself, and what the question says, no tool has found.
    """
    answers = _answers(ground_truth)
    earlier = " ".join(text_of(message.get("content")) for message in prompt)
    for result in tool_results:
        known = " ".join([earlier, *turns[: result["turn"]]])
        if result["succeeded"] and any(
            _holds(result["text"], answer) and not _holds(known, answer) for answer in answers
        ):
            return 1.0
        earlier = f"{earlier} {result['text']}"
    return 0.0


def _answers(ground_truth: Any) -> list[str]:
    found = ground_truth.get("target") if isinstance(ground_truth, dict) else ground_truth
    every = [
        str(one)
        for one in (found if isinstance(found, list) else [found])
        if isinstance(one, str | int | float)
    ]
    # GSM8K's own answers are reasoning, #### and the number.
    return [answer for one in every if (answer := one.rpartition("####")[2].strip())]


def _holds(text: str, answer: str) -> bool:
    """Return True if the text says this number, or these words."""
    wanted = numbers(answer[:TAIL])
    if len(wanted) == 1 and len(words(answer)) == 1:
        return wanted[0] in numbers(text)
    return f" {' '.join(words(answer))} " in f" {' '.join(words(text))} "
