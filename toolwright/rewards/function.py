"""A scoring function: which of the two forms it has, how it is called, what its answer means."""

from __future__ import annotations

import inspect
import math
import numbers
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.trajectory import FailureKind

Item = dict[str, Any]  # data_source, solution_str, ground_truth, extra_info, prompt: one attempt

ONE = ("data_source", "solution_str", "ground_truth", "extra_info")
BUILT_IN = (*ONE, "trajectory")  # a scorer in this process may ask for the attempt itself
FORMS = "f(data_source, solution_str, ground_truth, extra_info) or f(completions, **columns)"


@dataclass(frozen=True)
class Verdict:
    """A score with its parts; or no score, and why."""

    score: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    kind: FailureKind = "task"
    message: str = ""


class ScoringFunction:
    """Calls a function of either form and never mistakes an exception for a score."""

    def __init__(self, name: str, target: Callable[..., Any]) -> None:
        self.name = name
        self._target = target
        self.whole_batch, self._accepts = _form(name, target)

    def judge(self, items: Sequence[Item]) -> list[Verdict]:
        """One verdict an item, in order."""
        if not self.whole_batch:
            return [self._judge_one(item) for item in items]
        try:
            scores = self._target(**self._accepted(_columns(items)))
            if not isinstance(scores, Sequence) and hasattr(scores, "tolist"):
                scores = scores.tolist()
            if not isinstance(scores, list | tuple) or len(scores) != len(items):
                found = f"{len(scores)}" if isinstance(scores, list | tuple) else type(scores).__name__
                raise TaskFailure(
                    f"{self.name} must return a list of {len(items)} scores for {len(items)} completions, "
                    f"returned {found}"
                )
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            return [self._failure(error)] * len(items)
        return [self._verdict(score) for score in scores]

    def dry_run(self, item: Item) -> None:
        """Calls the function and lets what it raises through."""
        self._target(**self._accepted(_columns([item]) if self.whole_batch else item))

    def _judge_one(self, item: Item) -> Verdict:
        try:
            answer = self._target(**self._accepted({key: item[key] for key in BUILT_IN if key in item}))
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # a sys.exit() is no more a score than a ValueError
            return self._failure(error)
        return self._verdict(answer)

    def _accepted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._accepts is None:
            return arguments
        return {key: value for key, value in arguments.items() if key in self._accepts}

    def _failure(self, error: BaseException) -> Verdict:
        if isinstance(error, TaskFailure):
            return Verdict(message=str(error))
        tail = "".join(traceback.format_exception(error, limit=-4)).strip()
        kind: FailureKind = "infrastructure" if isinstance(error, InfrastructureFailure) else "task"
        return Verdict(kind=kind, message=f"{self.name} raised {type(error).__name__}\n{tail}")

    def _verdict(self, answer: Any) -> Verdict:
        parts = {}
        score = answer
        if isinstance(answer, dict):
            if "score" not in answer:
                return Verdict(message=f"{self.name} returned a dict without 'score': {sorted(answer)}")
            score = answer["score"]
            values = {str(key): _number(value) for key, value in answer.items() if key != "score"}
            # Parts are for reading; a text among them, say the answer that was found, is no part of a score.
            parts = {key: value for key, value in values.items() if value is not None}
        value = _number(score)
        if value is None:
            return Verdict(
                message=f"{self.name} returned {score!r:.200} ({type(score).__name__}), not a finite number"
            )
        return Verdict(score=value, parts=parts)


def _form(name: str, target: Callable[..., Any]) -> tuple[bool, frozenset[str] | None]:
    """Whether it takes the whole batch, and the arguments it accepts (None: any)."""
    if not callable(target):
        raise UserError(f"{name} is a {type(target).__name__}, not a function {FORMS}")
    if inspect.iscoroutinefunction(target):
        raise UserError(f"{name} is async; write it as a plain function {FORMS}")
    try:
        parameters = inspect.signature(target).parameters.values()
    except ValueError:
        raise UserError(f"{name} has no signature to read; wrap it in a function {FORMS}") from None
    names = frozenset(p.name for p in parameters if p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD})
    required = {p.name for p in parameters if p.default is p.empty and p.name in names}
    whole_batch = "completions" in names
    positional_only = any(p.kind is p.POSITIONAL_ONLY for p in parameters)
    wrong = positional_only or (not whole_batch and ("solution_str" not in names or required - set(BUILT_IN)))
    if wrong:
        raise UserError(f"{name} has the signature {inspect.signature(target)}; expected {FORMS}")
    return whole_batch, None if any(p.kind is p.VAR_KEYWORD for p in parameters) else names


def _columns(items: Sequence[Item]) -> dict[str, list[Any]]:
    extra = dict.fromkeys(key for item in items for key in item["extra_info"])
    return {
        **{key: [item["extra_info"].get(key) for item in items] for key in extra},
        "completions": [item["solution_str"] for item in items],
        "prompts": [item["prompt"] for item in items],
        "ground_truth": [item["ground_truth"] for item in items],
        "data_source": [item["data_source"] for item in items],
        "extra_info": [item["extra_info"] for item in items],
    }


def _number(value: Any) -> float | None:
    """A finite float, or None; numpy's and torch's scalars are numbers too."""
    if not isinstance(value, numbers.Real) and getattr(value, "shape", None) == ():
        value = value.item()
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        return None
    return float(value)
