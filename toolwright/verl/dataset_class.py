"""Tasks from a data set class of verl's form in a file of the user's: `data.custom_cls`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolwright.failures import UserError
from toolwright.tasks import TaskSet
from toolwright.tasks.builtin.file import task_of_row, task_set
from toolwright.tasks.rows import plain
from toolwright.tasks.verl_modules import load_for_verl
from toolwright.trajectory import Task


def dataset_class(
    *,
    path: str,
    name: str,
    train: str | list[str] | None,
    held_out: str | list[str] | None,
    train_size: int | None,
    held_out_size: int,
) -> TaskSet:
    """The rows that the class makes of the files, each a task as `task=file` reads them."""
    target = load_for_verl(f"{path}:{name}")
    learned = _tasks(target, name, train, "train")[:train_size]
    judged = _tasks(target, name, held_out, "held_out")[:held_out_size]
    return task_set(learned, judged)


def _tasks(target: Any, name: str, files: str | list[str] | None, split: str) -> list[Task]:
    if not files:
        return []
    places = [str(Path(file).expanduser()) for file in ([files] if isinstance(files, str) else files)]
    try:
        made = target(data_files=places, tokenizer=None, config={}, processor=None)
        rows = [made[index] for index in range(len(made))]
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"data set class {name!r} could not read {', '.join(places)}: {type(error).__name__}: {error}. "
            "It is built with data_files, tokenizer=None, config={} and processor=None"
        ) from error
    return [
        task_of_row(_row(row), id=f"{split}:{number}", where=f"{name}, row {number}")
        for number, row in enumerate(rows, 1)
    ]


def _row(row: Any) -> dict[str, Any]:
    """A row with the prompt that the class shows: `raw_prompt`, where it has one."""
    own: dict[str, Any] = plain(dict(row))
    shown: Sequence[Any] | None = own.pop("raw_prompt", None)
    return own if shown is None else {**own, "prompt": shown}
