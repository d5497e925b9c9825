"""1 if the answer is mathematically equal to the ground truth, by math-verify; else 0.

math-verify's own timeouts turn into "not equal". They are off: sympy may run for ever, or for long in C,
and only the end of the process ends that. Exceptions are failures too, never a 0.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Sequence
from math import floor, log10
from typing import Any

from toolwright.failures import TaskFailure
from toolwright.images import text_of
from toolwright.rewards import SCORERS
from toolwright.rewards.answers import boxed, boxed_together, unfit
from toolwright.rewards.builtin.numeric import SIGNS, THOUSANDS
from toolwright.rewards.votes import spelled

# math-verify looks for the last answer; its regular expressions are slow on a long text.
TAIL = 4000
DAPO_TAIL = 300
_ANSWER = re.compile(r"answer\s*:([^\n]+)", re.IGNORECASE)
_PLAIN = re.compile(r"-?[0-9]{1,300}")
# A term has an operation, and is more than a fraction.
_TERM = re.compile(
    r"(?!-?(?:\\frac\{?[0-9]+\}?\{?[0-9]+\}?|[0-9]+/[0-9]+)$).*(?:[+*/^!|]|.-|\\(?!pi|infty|[{}]))", re.DOTALL
)
# What math-verify computes as it reads, so that no tree shows the work; and where it reads the last of two.
_COMPUTED = re.compile(
    r"\\(?:gcd|lcm|max|min|[dt]?binom|choose|det|div|ln|log|exp|lor|land|vee|wedge|cup|cap)(?![a-z])"
    r"|\\operatorname\{(?:gcd|lcm|max|min)\}|\\begin\{vmatrix\}"
)
_IN_THE_TEXT = re.compile(r"\$\$?([^$]+)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_SIGNS = SIGNS | str.maketrans({"°": "^\\circ", "²": "^2", "³": "^3", "½": "\\frac12"})


@SCORERS.register(
    "math",
    "math500",
    "HuggingFaceH4/MATH-500",
    "lighteval/MATH",
    "DigitalLearningGmbH/MATH-lighteval",
    "HuggingFaceH4/aime_2024",
    needs=["process", "final", "math_verify"],
)
def math(
    solution_str: str, ground_truth: Any, prompt: Sequence[dict[str, Any]] = (), *, strict: bool = False
) -> float:
    """`strict`: nothing counts outside of `\\boxed{}`."""
    truth = _text(ground_truth)
    box = boxed(solution_str)
    if box is None:
        found = [] if strict else _parsed(solution_str[-TAIL:])
        return float(_answers(str(found[-1]) if found else "", truth, prompt, found))
    # Nothing counts beside a box, or an attempt could give one answer in the box and another around it.
    together = boxed_together(solution_str)
    said = [box, ", ".join(together)] if len(together) > 1 else [box]
    return float(any(_answers(one, truth, prompt) for one in said))


@SCORERS.register("math_dapo", "math_dapo_reasoning", needs=["process", "final", "math_verify"])
def math_dapo(
    solution_str: str, ground_truth: Any, prompt: Sequence[dict[str, Any]] = ()
) -> dict[str, float]:
    """1 or −1, like DAPO. What counts stands near the end: after `Answer:`, or else in `\\boxed{}`."""
    end = solution_str[-DAPO_TAIL:]
    said = _ANSWER.findall(end)
    answer = boxed(said[-1] if said else end)
    if answer is None and said:
        answer = said[-1]
    right = _answers(answer or "", _text(ground_truth), prompt)
    return {"score": 1.0 if right else -1.0, "acc": float(right)}


@SCORERS.register("geo3k", "hiyouga/geometry3k", needs=["process", "final", "math_verify"])
def geo3k(solution_str: str, ground_truth: Any, prompt: Sequence[dict[str, Any]] = ()) -> dict[str, float]:
    """0.9 for a right answer in `\\boxed{}`, and 0.1 for `<think>…</think>` before one, like verl."""
    right = math(solution_str, ground_truth, prompt, strict=True)
    thought, closed, rest = solution_str.partition("</think>")
    formed = float(thought.startswith("<think>") and bool(closed) and "}" in rest.partition("\\boxed{")[2])
    return {"score": 0.9 * right + 0.1 * formed, "acc": right, "format": formed}


def _answers(said: str, truth: str, prompt: Sequence[dict[str, Any]], found: list[Any] | None = None) -> bool:
    """Return True if this is the truth, and not a term of the question that is worth the truth. `found` is
    what math-verify has read already."""
    values = _truth(truth)
    if not _equal(values, _alone(said) if found is None else found):
        return False
    last = spelled(said).rpartition("=")[2]
    if last == spelled(truth).rpartition("=")[2]:
        return True
    return not _computes(said, truth) and not _restates(last, truth, prompt)


def _computes(said: str, truth: str) -> bool:
    import sympy

    is_number = isinstance(_truth(truth)[0], sympy.Number)
    return is_number and bool(_COMPUTED.search(said)) and not _COMPUTED.search(truth)


def _restates(said: str, truth: str, prompt: Sequence[dict[str, Any]]) -> bool:
    """Return True if the question has this term, or one that is worth the truth and stands in this one."""
    asked = [text_of(message.get("content")) for message in prompt]
    if _TERM.match(said) and any(said in spelled(text) for text in asked):
        return True
    found = ("".join(parts) for text in asked for parts in _IN_THE_TEXT.findall(text))
    terms = {term.strip(" .,\n").rpartition("=")[2] for term in found}
    # Where the question has several, such as two fractions, one of them may be the answer.
    held = [one for one in terms if len(terms) == 1 or _TERM.match(spelled(one))]
    return any(
        "" != spelled(one) != spelled(truth) and spelled(one) in said and _equal(_truth(truth), _alone(one))
        for one in held
    )


def _equal(truth: list[Any], answer: list[Any]) -> bool:
    import math_verify

    equal = math_verify.verify(
        truth, answer, float_rounding=_decimals(truth[0]), timeout_seconds=None, raise_on_error=True
    )
    return bool(equal) and not _unfinished(truth[0], answer[0])


def _decimals(truth: Any) -> int:
    """How many decimals of a decimal fraction count: six, and for a small number three digits, or 0.0 would
    equal it."""
    try:
        size = abs(complex(truth))
    except (TypeError, OverflowError):  # not a number, or a large one
        return 6
    return max(6, 2 - floor(log10(size))) if 0 < size < 1 else 6


def _unfinished(truth: Any, answer: Any) -> bool:
    """Return True if the answer is the work that leads to the truth: 2+3 asks for 5 and does not answer it,
    √(36+81) does not say 3√13, and 2x+3x is 5x before it is."""
    import sympy

    answer = getattr(answer, "_unsorted_args", [answer])[-1]  # the last of a = b = c
    answer = getattr(answer, "rhs", answer)
    if not (isinstance(truth, sympy.Basic) and isinstance(answer, sympy.Basic)):
        return False
    if any(str(symbol) != "i" for symbol in truth.free_symbols):
        return _additions(answer) > max(_additions(truth), _additions(answer.doit()))
    work = (sympy.Function, sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit)
    if _additions(answer) > _additions(truth) or (answer.has(*work) and not truth.has(*work)):
        return True
    if not isinstance(truth, sympy.Number):
        return False
    products = (part for part in sympy.preorder_traversal(answer) if part.is_Mul)
    return any(
        sum(factor.is_Integer and abs(int(factor)) > 1 for factor in part.args) > 1 for part in products
    )


def _additions(value: Any) -> int:
    import sympy

    return sum(len(part.args) - 1 for part in sympy.preorder_traversal(value) if part.is_Add)


def _text(ground_truth: Any) -> str:
    if isinstance(ground_truth, str):
        return ground_truth
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
    box = boxed(text)
    found = _alone(text if box is None else box)
    if not any(isinstance(value, sympy.Basic | sympy.MatrixBase) for value in found):
        raise TaskFailure(f"math-verify cannot read the ground truth {text!r:.200} as mathematics")
    return found


def _alone(text: str) -> list[Any]:
    """The value of an answer that stands alone, in a box say."""
    text = THOUSANDS.sub(",", text.translate(_SIGNS)).strip(" $").removesuffix(".").replace("\\%", "%")
    # math-verify reads a percentage between dollars, and not in a box.
    return _parsed(f"${text}$" if text.endswith("%") else f"\\boxed{{{text}}}")


def _parsed(text: str) -> list[Any]:
    """The expressions that math-verify finds; an empty list if there are none."""
    import math_verify

    # It warns once a process that its timeouts are off, which is intended.
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return math_verify.parse(text, parsing_timeout=None, raise_on_error=True)
