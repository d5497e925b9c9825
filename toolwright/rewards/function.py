"""A scoring function of either form: how it is called, and what its result means."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.registry import check_settings, signature_of
from toolwright.rewards.item import FIRST_FORM, OF_THE_ATTEMPT, ON_REQUEST, Item, facts, with_facts
from toolwright.trajectory import FailureKind, finite_number

STEPS = "step_rewards"
FORMS = "f(data_source, solution_str, ground_truth, extra_info) or f(completions, **columns)"


@dataclass(frozen=True)
class Verdict:
    """A score with its parts; or no score and the reason."""

    score: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    step_rewards: list[float] = field(default_factory=list)  # what each turn earned of it; empty: not said
    kind: FailureKind = "task"
    message: str = ""


class ScoringFunction:
    """Calls a function of either form. An exception is never a score."""

    def __init__(
        self, name: str, target: Callable[..., Any], settings: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name
        self._target = target
        self.whole_batch, self._accepts = _form(name, target, settings or {})
        own = name.rpartition(":")[2]
        self._settings = check_settings(
            f"scorer {own!r}",
            signature_of(target).parameters.values(),
            settings or {},
            prefix=f"reward.params.{own}.",
            reserved=self._reserved(settings or {}),
        )

    @property
    def columns(self) -> list[str]:
        """What a batch function cannot be called without and every task must have in its extra_info."""
        parameters = inspect.signature(self._target).parameters.values()
        needed = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        known = {*COLUMNS, *VERL_COLUMNS, *self._settings}
        return [name for name in needed if name not in known] if self.whole_batch else []

    @property
    def reads_truth(self) -> bool:
        """True if the score may depend on the ground truth, and so say right or wrong."""
        return self._accepts is None or not self._accepts.isdisjoint(("ground_truth", "ground_truths"))

    def judge(self, items: Sequence[Item]) -> list[Verdict]:
        """Verdicts in the order of the items."""
        if not self.whole_batch:
            return [self._judge_one(item) for item in items]
        try:
            scores = self._target(**self._arguments(items), **self._settings)
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
            return [failed(self.name, error)] * len(items)
        return [
            failed(self.name, score) if isinstance(score, Exception) else verdict_of(self.name, score)
            for score in scores
        ]

    def dry_run(self, item: Item) -> None:
        """Calls the function and lets its exceptions through."""
        self._target(**self._arguments([item]), **self._settings)

    def _judge_one(self, item: Item) -> Verdict:
        try:
            answer = self._target(**self._arguments([item]), **self._settings)
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # sys.exit() is not a score either
            return failed(self.name, error)
        return verdict_of(self.name, answer)

    def _reserved(self, settings: Mapping[str, Any]) -> set[str]:
        """Arguments that describe the attempt. Others of a batch function may be columns of the tasks."""
        if not self.whole_batch:
            return {*FIRST_FORM, *ON_REQUEST}
        return {*COLUMNS, *VERL_COLUMNS, *inspect.signature(self._target).parameters} - (
            set(settings) - set(COLUMNS)
        )

    def _arguments(self, items: Sequence[Item]) -> dict[str, Any]:
        if self.whole_batch:
            columns = _columns(items)
            if self._accepts is not None and "solution_strs" in self._accepts:
                columns |= {name: columns[own] for name, own in VERL_COLUMNS.items()}
            if self._accepts is not None:
                return _selected(columns, self._accepts)
            if "conversations" not in inspect.signature(self._target).parameters:
                del columns["conversations"]  # whoever takes any column gets those of the tasks
            return columns
        (item,) = items
        arguments = _selected(item, self._accepts or frozenset())
        if "extra_info" in arguments:
            arguments["extra_info"] = with_facts(item)
        return arguments


def failed(name: str, error: BaseException) -> Verdict:
    """The verdict for an exception, with the end of its traceback unless it is a TaskFailure. The frame of
    the call, which is ours, is left out."""
    kind: FailureKind = "infrastructure" if isinstance(error, InfrastructureFailure) else "task"
    if isinstance(error, TaskFailure):
        return Verdict(message=str(error))
    place = error.__traceback__ and error.__traceback__.tb_next
    tail = "".join(traceback.format_exception(type(error), error, place, limit=-4)).strip()
    return Verdict(kind=kind, message=f"{name} raised {type(error).__name__}\n{tail}")


def verdict_of(name: str, answer: Any) -> Verdict:
    """The verdict for a scorer's result: a number, or a dict with `score` and further numbers.

    `step_rewards` in the dict says what each turn earned of the score.
    """
    parts = {}
    score = answer
    steps: list[float] = []
    if isinstance(answer, dict):
        if "score" not in answer:
            return Verdict(
                message=f"{name} returned a dict without 'score': {', '.join(sorted(map(str, answer)))}"
            )
        score = answer["score"]
        given: Any = answer.get(STEPS)
        given = given.tolist() if hasattr(given, "tolist") else given
        found = [finite_number(value) for value in given] if isinstance(given, list | tuple) else []
        steps = [value for value in found if value is not None]
        if given is not None and (len(steps) < len(found) or not isinstance(given, list | tuple)):
            return Verdict(
                message=f"{name} returned step_rewards that are not a list of finite numbers: {given!r:.200}"
            )
        rest = {str(key): value for key, value in answer.items() if key not in ("score", STEPS)}
        values = {key: finite_number(value) for key, value in rest.items()}
        # Parts are numbers; a text among them, such as the answer that was found, is dropped.
        parts = {key: value for key, value in values.items() if value is not None}
    value = finite_number(score)
    if value is None:
        return Verdict(
            message=f"{name} returned {score!r:.200} ({type(score).__name__}), not a finite number"
        )
    return Verdict(score=value, parts=parts, step_rewards=steps)


def _form(
    name: str, target: Callable[..., Any], settings: Mapping[str, Any]
) -> tuple[bool, frozenset[str] | None]:
    """Return whether the function takes a whole batch, and its arguments by name (None: every column)."""
    if not callable(target):
        raise UserError(f"{name} is a {type(target).__name__}, not a function {FORMS}")
    if inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(type(target).__call__):
        raise UserError(f"{name} is async; write it as a plain function {FORMS}")
    try:
        parameters = inspect.signature(target).parameters.values()
    except ValueError:
        raise UserError(f"{name} has no signature to read; wrap it in a function {FORMS}") from None
    names = frozenset(p.name for p in parameters if p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD})
    required = {p.name for p in parameters if p.default is p.empty and p.name in names}
    whole_batch = not names.isdisjoint(("completions", "conversations", "solution_strs"))
    positional_only = any(p.kind is p.POSITIONAL_ONLY for p in parameters)
    # A keyword-only argument without a default is a setting; `checked` reports a missing one.
    settable = {*settings, *(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)}
    unknown = required - {*FIRST_FORM, *ON_REQUEST, *settable}
    first_form = not names.isdisjoint(OF_THE_ATTEMPT)
    if positional_only or (not whole_batch and (not first_form or unknown)):
        raise UserError(f"{name} has the signature {inspect.signature(target)}; expected {FORMS}")
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if whole_batch and "solution_strs" in names:  # verl's batch form, which gets these four and its settings
        return True, (names | set(VERL_COLUMNS) if open_ended else names) - set(settings)
    if whole_batch:
        return True, None if open_ended else names
    # A function with **kwargs gets the four arguments of the first form only.
    return False, (names | set(FIRST_FORM) if open_ended else names) - set(settings)


# Columns of the second form that every task has.
COLUMNS = (
    *("completions", "prompts", "ground_truth", "data_source", "extra_info"),
    *("num_turns", "counts", "stop", "conversations"),
)


# What verl's batch form calls them.
VERL_COLUMNS = {
    "data_sources": "data_source",
    "solution_strs": "completions",
    "ground_truths": "ground_truth",
    "extra_infos": "extra_info",
}


def _columns(items: Sequence[Item]) -> dict[str, list[Any]]:
    extra = dict.fromkeys(key for item in items for key in item["extra_info"])
    how = [facts(item) for item in items]
    return {
        **{key: [fact[key] for fact in how] for key in ("num_turns", "counts", "stop")},
        **{key: [item["extra_info"].get(key) for item in items] for key in extra},
        "completions": [item["solution_str"] for item in items],
        "conversations": [item.get("conversation", []) for item in items],
        "prompts": [item["prompt"] for item in items],
        "ground_truth": [item["ground_truth"] for item in items],
        "data_source": [item["data_source"] for item in items],
        "extra_info": [item["extra_info"] for item in items],
    }


def _selected(arguments: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key in names}
