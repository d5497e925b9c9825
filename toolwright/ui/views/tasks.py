"""The tasks of a run, and one task through the steps of training."""

from __future__ import annotations

from typing import Any

import numpy as np

from toolwright.observe.attempt_index import AttemptTable
from toolwright.trajectory import Task
from toolwright.ui.problem import PageProblem
from toolwright.ui.query import Query
from toolwright.ui.run_library import OpenRun
from toolwright.ui.view import RUN_VIEWS, ViewAnswer, of_rows
from toolwright.ui.views.attempt import read_attempts
from toolwright.ui.views.attempts import attempt_rows, numbers

Array = np.ndarray[Any, Any]
COLUMNS = ("task", "question", "source", "attempts", "steps", "first", "last", "mean", "change")
STEP_COLUMNS = ("step", "attempts", "failed", "reward_mean", "reward_min", "reward_max", "length_mean")
MOST_ANSWERS = 200  # attempts of one task whose answers are read from the files
MOST_ANSWER = 400  # characters of an answer's end


@RUN_VIEWS.register("tasks")
def tasks(run: OpenRun, query: Query) -> ViewAnswer:
    """Every task with what it earned when it first came up and when it last did."""
    table = run.attempts
    sort = query.choice("sort", COLUMNS, "task")
    descending = query.choice("order", ("asc", "desc"), "asc") == "desc"
    rows = _rows(table)
    known = [row for row in rows if row[sort] is not None]
    known.sort(key=lambda row: row[sort], reverse=descending)
    rows = known + [row for row in rows if row[sort] is None]
    offset, limit = query.page()
    data = {"total": len(rows), "offset": offset, "rows": rows[offset : offset + limit]}
    return of_rows(data, COLUMNS, rows)


def _rows(table: AttemptTable) -> list[dict[str, Any]]:
    column, rewards = table.texts["task"], table.numbers["reward"]
    order = np.argsort(column.codes, kind="stable")  # by task, and each task's attempts by step
    codes, starts = np.unique(column.codes[order], return_index=True)
    found = []
    for code, mine in zip(codes, np.split(order, starts[1:]), strict=True):
        steps = table.step[mine]
        first, last = (_mean(rewards[mine[steps == step]]) for step in (steps[0], steps[-1]))
        change = None if first is None or last is None or steps[0] == steps[-1] else last - first
        place = int(mine[0])
        found.append(
            {
                "task": column.words.all[code],
                "question": table.texts["question"].at(place),
                "source": table.texts["source"].at(place),
                "attempts": len(mine),
                "steps": len(np.unique(steps)),
                "first": first,
                "last": last,
                "mean": _mean(rewards[mine]),
                "change": change,
            }
        )
    return found


@RUN_VIEWS.register("tasks/item")
def task(run: OpenRun, query: Query) -> ViewAnswer:
    """`tasks/TASK`: its attempts step by step, with the end of each answer."""
    name = "/".join(query.path)
    table = run.attempts
    places = np.flatnonzero(table.texts["task"].codes == table.texts["task"].words.find(name))
    if not len(places):
        raise PageProblem(404, f"there is no task {name[:200]!r} among the attempts of this run")
    steps = [_step(table, places[table.step[places] == step]) for step in np.unique(table.step[places])]
    paths = {step["step"]: table.path(step["step"]) for step in steps}
    question = table.texts["question"].at(int(places[0]))
    about, left = Task(name, []), MOST_ANSWERS
    for step in reversed(steps):  # the newest are what one looks for
        rows, path = [row["row"] for row in step["rows"]][:left], paths[step["step"]]
        if path is None or not rows:
            continue
        found = [attempt for attempt, _ in read_attempts(path, rows, tokens=False)]
        about, left = found[0].task, left - len(rows)
        for row, attempt in zip(step["rows"], found, strict=False):
            row["answer"] = attempt.response[-MOST_ANSWER:]
    shown = {"id": name, "prompt": about.prompt or None, "ground_truth": about.ground_truth}
    return of_rows({"task": shown, "question": question, "steps": steps}, STEP_COLUMNS, steps)


def _step(table: AttemptTable, places: Array) -> dict[str, Any]:
    rewards = table.numbers["reward"][places]
    some = rewards[~np.isnan(rewards)]
    wanted = ("step", "row", "group", "index", "reward", "length", "stop", "failed")
    return {
        "step": int(table.step[places[0]]),
        "attempts": len(places),
        "failed": int(table.numbers["failed"][places].sum()),
        "reward_mean": _mean(rewards),
        "reward_min": float(some.min()) if len(some) else None,
        "reward_max": float(some.max()) if len(some) else None,
        "length_mean": _mean(table.numbers["length"][places]),
        "rows": [{name: row[name] for name in wanted} for row in attempt_rows(table, places)],
    }


def _mean(values: Array) -> float | None:
    some = values[~np.isnan(values)]
    return numbers(np.array([some.mean()]))[0] if len(some) else None
