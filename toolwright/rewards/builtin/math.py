"""1 if the answer is mathematically equal to the ground truth, by math-verify; else 0.

math-verify's own timeouts turn into "not equal". They are off: sympy may run for ever, or for long in C,
and only the end of the process ends that. Exceptions are failures too, never a 0.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import Any

from toolwright.failures import TaskFailure
from toolwright.rewards import SCORERS
from toolwright.rewards.answers import boxed, unfit

# math-verify looks for the last answer; its regular expressions are slow on a long text.
TAIL = 4000
DAPO_TAIL = 300
_ANSWER = re.compile(r"answer\s*:([^\n]+)", re.IGNORECASE)
_PLAIN = re.compile(r"-?[0-9]{1,300}")


@SCORERS.register(
    "math",
    "math500",
    "HuggingFaceH4/MATH-500",
    "lighteval/MATH",
    "DigitalLearningGmbH/MATH-lighteval",
    "HuggingFaceH4/aime_2024",
    needs=["process", "final", "math_verify"],
)
def math(solution_str: str, ground_truth: Any, *, strict: bool = False) -> float:
    """`strict`: nothing counts outside of `\\boxed{}`."""
    truth = _truth(ground_truth if isinstance(ground_truth, str) else _text(ground_truth))
    box = boxed(solution_str)
    if strict and box is None:
        return 0.0
    # The last box counts; math-verify would join several that stand close together into one set.
    if box is not None and _equal(truth, _parsed(f"\\boxed{{{box}}}")):
        return 1.0
    start = max(0, len(solution_str) - TAIL)
    if "\\boxed" in solution_str:
        start = min(start, solution_str.rfind("\\boxed"))
    return float(_equal(truth, _parsed(solution_str[start:])))


@SCORERS.register("math_dapo", "math_dapo_reasoning", needs=["process", "final", "math_verify"])
def math_dapo(solution_str: str, ground_truth: Any) -> dict[str, float]:
    """1 or −1, like DAPO. What counts stands near the end: after `Answer:`, or else in `\\boxed{}`."""
    end = solution_str[-DAPO_TAIL:]
    said = _ANSWER.findall(end)
    answer = boxed(said[-1] if said else end)
    if answer is None and said:
        answer = said[-1].strip().removeprefix("$").removesuffix("$")
    truth = _truth(ground_truth if isinstance(ground_truth, str) else _text(ground_truth))
    right = answer is not None and _equal(truth, _parsed(f"\\boxed{{{answer}}}"))
    return {"score": 1.0 if right else -1.0, "acc": float(right)}


@SCORERS.register("geo3k", "hiyouga/geometry3k", needs=["process", "final", "math_verify"])
def geo3k(solution_str: str, ground_truth: Any) -> dict[str, float]:
    """0.9 for a right answer in `\\boxed{}`, and 0.1 for `<think>…</think>` before one, like verl."""
    right = math(solution_str, ground_truth, strict=True)
    thought, closed, rest = solution_str.partition("</think>")
    formed = float(thought.startswith("<think>") and bool(closed) and "}" in rest.partition("\\boxed{")[2])
    return {"score": 0.9 * right + 0.1 * formed, "acc": right, "format": formed}


def _equal(truth: list[Any], answer: list[Any]) -> bool:
    import math_verify

    return bool(math_verify.verify(truth, answer, timeout_seconds=None, raise_on_error=True))


def _text(ground_truth: Any) -> str:
    if isinstance(ground_truth, bool) or not isinstance(ground_truth, int | float):
        raise unfit(ground_truth, "LaTeX or a number", scorer="math")
    return str(ground_truth)


@functools.lru_cache(maxsize=4096)
def _truth(text: str) -> list[Any]:
    """The ground truth; a group's attempts share it."""
    import sympy

    text = text.strip()
    if _PLAIN.fullmatch(text):
        return [sympy.Integer(text)]
    if boxed(text) is not None:
        found = _parsed(text)
    else:
        found = _parsed(f"\\boxed{{{text.removeprefix('$').removesuffix('$')}}}")
    if not any(isinstance(value, sympy.Basic | sympy.MatrixBase) for value in found):
        raise TaskFailure(f"math-verify cannot read the ground truth {text!r:.200} as mathematics")
    return found


def _parsed(text: str) -> list[Any]:
    """The expressions that math-verify finds; an empty list if there are none."""
    import math_verify

    # It warns once a process that its timeouts are off, which is intended.
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return math_verify.parse(text, parsing_timeout=None, raise_on_error=True)
