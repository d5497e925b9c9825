"""Answers that were compared, in the rows of a file: pairs, or single answers with a label.

The columns are those of TRL's preference datasets: `prompt`, `chosen` and `rejected`, or `prompt`,
`completion` and `label`. A pair may have a `margin`, for reward models, and a row may have `tools`, which its
conversation offers. An answer is text or a list of chat messages. Conversations may repeat the prompt, or
stand without one: what `chosen` and `rejected` begin with in common is the prompt then.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from toolwright.failures import UserError
from toolwright.tasks.conversations import tools_of
from toolwright.tasks.messages import messages_of
from toolwright.tasks.rows import Row
from toolwright.trajectory import Task

Messages = list[dict[str, Any]]
COLUMNS = ("chosen", "rejected", "completion")
TOOLS = "tool_schemas"  # in `Task.extra_info`: the tools of a row, in place of the configured ones
ANSWERS = "answers"  # in `Task.extra_info`, from `pairs` or `labelled`: [{"messages": …, "label": …}, …]


def read(row: Row, where: str) -> tuple[Messages, dict[str, Any]]:
    """The prompt of a row and its answers, by column."""
    single = row.get("completion") is not None
    columns = ("completion",) if single else ("chosen", "rejected")
    for column in columns:
        if row.get(column) is None:
            raise UserError(f"{where}: there is no `{column}`; the row has {', '.join(row) or 'nothing'}")
    said = {c: messages_of(row[c], where, column=c, said_by="assistant") for c in columns}
    if row.get("prompt") is not None:
        prompt = messages_of(row["prompt"], where)
    elif all(isinstance(row[column], list) for column in columns) and not single:
        prompt = _shared(*said.values())
    else:
        raise UserError(f"{where}: there is no `prompt`; the row has {', '.join(row)}")
    if not prompt:
        raise UserError(
            f"{where}: `chosen` and `rejected` have no beginning in common, and there is no `prompt`"
        )
    found: dict[str, Any] = {c: _answer(messages, prompt, where, c) for c, messages in said.items()}
    if single:
        found["label"] = _label(row.get("label"), where)
    elif row.get("margin") is not None:
        found["margin"] = _margin(row["margin"], where)
    if (tools := tools_of(row, where)) is not None:
        found[TOOLS] = tools
    return prompt, found


def pairs(tasks: Sequence[Task]) -> list[Task]:
    """Tasks with two answers each, the chosen one first."""
    for task in tasks:
        if "chosen" not in task.extra_info:
            raise UserError(
                f"task {task.id} has no `chosen` and `rejected`, and this algorithm learns from pairs; for "
                "single answers with a label there is algorithm=kto"
            )
    return [
        _with_answers(task, [(task.extra_info["chosen"], 1.0), (task.extra_info["rejected"], 0.0)])
        for task in tasks
    ]


def labelled(tasks: Sequence[Task]) -> list[Task]:
    """Tasks with one labelled answer each, and an answer to another prompt beside it. A pair becomes two."""
    single: list[tuple[Task, Messages, float]] = []
    for task in tasks:
        known = task.extra_info
        if "completion" in known:
            single.append((task, known["completion"], float(known["label"])))
        elif "chosen" in known:
            single.append((replace(task, id=f"{task.id}/chosen"), known["chosen"], 1.0))
            single.append((replace(task, id=f"{task.id}/rejected"), known["rejected"], 0.0))
        else:
            raise UserError(
                f"task {task.id} has neither `completion` and `label` nor `chosen` and `rejected`"
            )
    prompts = [json.dumps(task.prompt, sort_keys=True) for task, *_ in single]
    return [
        _with_answers(task, [(answer, label), (single[_unrelated(prompts, place)][1], 0.0)])
        for place, (task, answer, label) in enumerate(single)
    ]


def _unrelated(prompts: Sequence[str], place: int) -> int:
    """A row with another prompt, from half the file away: neighbours often resemble each other."""
    size = len(prompts)
    for step in range(size):
        other = (place + size // 2 + step) % size
        if prompts[other] != prompts[place]:
            return other
    return (place + 1) % size


def _with_answers(task: Task, answers: Sequence[tuple[Messages, float]]) -> Task:
    kept = {key: value for key, value in task.extra_info.items() if key not in (*COLUMNS, "label")}
    listed = [{"messages": messages, "label": label} for messages, label in answers]
    return replace(task, extra_info={**kept, ANSWERS: listed})


def _answer(messages: Messages, prompt: Messages, where: str, column: str) -> Messages:
    answer = messages[len(prompt) :] if messages[: len(prompt)] == prompt else messages
    if not answer or answer[0]["role"] != "assistant" or answer[-1]["role"] != "assistant":
        raise UserError(f"{where}: `{column}` must begin and end with a message of the assistant")
    return answer


def _shared(chosen: Messages, rejected: Messages) -> Messages:
    """Return what both begin with, up to where the assistant's last message could differ."""
    same = 0
    while same < min(len(chosen), len(rejected)) and chosen[same] == rejected[same]:
        same += 1
    while same and same >= min(len(chosen), len(rejected)):  # one of them goes on where the other ends
        same -= 1
    return chosen[:same]


def _margin(margin: Any, where: str) -> float:
    if isinstance(margin, int | float) and not isinstance(margin, bool) and math.isfinite(margin):
        return float(margin)
    raise UserError(f"{where}: `margin` must be a number, found {json.dumps(margin)}")


def _label(label: Any, where: str) -> bool:
    if isinstance(label, bool) or label in (0, 1):
        return bool(label)
    raise UserError(f"{where}: `label` must be true or false, found {json.dumps(label)}")
