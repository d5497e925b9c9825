"""Answers that were compared, from files: pairs for DPO and ORPO, single answers with a label for KTO."""

from __future__ import annotations

import json

from toolwright.tasks import TASKS, SplitSizes, TaskSet
from toolwright.tasks.builtin.file import splits
from toolwright.tasks.preferences import read
from toolwright.tasks.rows import Row
from toolwright.trajectory import Task


@TASKS.register("preferences")
def preferences(
    *,
    sizes: SplitSizes,
    train: str | list[str] | None,
    held_out: str | list[str] | None,
) -> TaskSet:
    """Files as task `file` reads them, with `prompt`, `chosen` and `rejected`, or `prompt`, `completion` and
    `label`."""
    learned, judged = splits(
        _task,
        task="preferences",
        sizes=sizes,
        train=train,
        held_out=held_out,
        every_row=True,
    )
    said = (json.dumps([t.prompt, t.extra_info], ensure_ascii=False) for t in (*learned, *judged))
    alphabet = "".join(sorted({"\n"}.union(*said)))
    return TaskSet(learned, judged, scorer="environment", alphabet=alphabet)


def _task(row: Row, *, id: str, where: str) -> Task:
    prompt, answers = read(row, where)
    return Task(id, prompt, extra_info=answers)
