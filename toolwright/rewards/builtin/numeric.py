"""1 if the number that the answer ends with equals the ground truth, else 0."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from toolwright.rewards import SCORERS
from toolwright.rewards.answers import boxed, unfit

# A minus after a digit, a letter or a bracket is a subtraction, not a sign; a comma only divides thousands.
NUMBER = re.compile(
    r"(?:(?<![\w)\]}])-)?\$?"
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
)
THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|,?\\[,;! ]|~)(?=[0-9]{3})")  # as LaTeX divides them
SIGNS = str.maketrans("−–０１２３４５６７８９", "--0123456789")
# What may stand around a number in a box: commands that change only its look, degrees, the power of a unit.
_DRESS = re.compile(
    r"\\(?:(?:text|math)[a-z]*|mbox|boxed|displaystyle|approx|degree|quad|left|right)(?![a-z])"
    r"|\\[ ,;:!$%]|[$~]|\^ *\{? *\\circ *\}?|(?<=[A-Za-z}]) *\^ *\{? *[0-9] *\}?"
)
_TERM = re.compile(r"[\\^_*!×÷]|[0-9][²³]|/ *[0-9]|(?<=.)\+|[A-Za-z)}] *- *[0-9]")
# The last number is in the last characters; searching all of a long text takes too long.
TAIL = 2000


@SCORERS.register("numeric", "arithmetic", "aime", "aime25", "math-ai/aime25", needs=["final"])
def numeric(solution_str: str, ground_truth: Any, *, strict: bool = False) -> float:
    """The number in `\\boxed{}`, or without a box the last of all; `strict`: nothing without a box."""
    truth = number_of(ground_truth, scorer="numeric")
    box = boxed(solution_str)
    if box is not None:
        return float(number_in_box(box) == truth)
    found = [] if strict else numbers(solution_str[-TAIL:])
    return float(bool(found) and found[-1] == truth)


def numbers(text: str) -> list[Decimal]:
    """All numbers of a text, in order; `$1,234.50` is one."""
    found = NUMBER.findall(THOUSANDS.sub(",", text.translate(SIGNS)))
    return [Decimal(re.sub(r"[$,]", "", number)) for number in found]


def number_in_box(box: str) -> Decimal | None:
    """The one number of a box, after its last `=`, with or without a unit. None if there are several, or if
    it is part of a term: neither 1/70 nor "69 or 70" is 70."""
    text = THOUSANDS.sub(",", box[-TAIL:].translate(SIGNS)).rpartition("=")[2]
    text = _DRESS.sub("", text).strip()
    found = numbers(re.sub(r"^- +", "-", text))
    return found[0] if len(found) == 1 and not _TERM.search(text) else None


def number_of(ground_truth: Any, *, scorer: str) -> Decimal:
    """The ground truth as a number, exactly."""
    if isinstance(ground_truth, int | float) and math.isfinite(ground_truth):
        return Decimal(repr(float(ground_truth)) if isinstance(ground_truth, float) else int(ground_truth))
    found = numbers(ground_truth) if isinstance(ground_truth, str) else []
    if len(found) != 1:
        raise unfit(ground_truth, "a number", scorer=scorer)
    return found[0]
