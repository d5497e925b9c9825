"""Tasks from files: Parquet or JSON lines with `prompt`, `data_source`, `reward_model` and `extra_info`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from toolwright.failures import UserError
from toolwright.images import PART, images_in, part_of, read_image, texts_of, with_images
from toolwright.tasks import TASKS, SplitSizes, TaskSet
from toolwright.tasks.datasets import DATASETS
from toolwright.tasks.generated import draw
from toolwright.tasks.interaction import read_interactions, with_interaction
from toolwright.tasks.mapped import data_files
from toolwright.tasks.messages import messages_of
from toolwright.tasks.rows import Row, read
from toolwright.trajectory import Task

# Columns with a meaning of their own. A file without `extra_info`, such as a CSV file, has it in its others.
OWN = (
    *("prompt", "data_source", "reward_model", "reward_model.ground_truth", "ability", "agent_name"),
    *("environment", "interaction", "tools"),  # in `extra_info` they choose what attempts the task
)
MARK = "<image>"  # verl's: each stands for the next image of the row's column
TaskReader = Callable[..., Task]  # of a row, with the `id` of its task and `where` it stands


@TASKS.register("file")
def file(
    *,
    sizes: SplitSizes,
    train: str | list[str] | None,
    held_out: str | list[str] | None,
    prompt: str | None = None,
    interactions: str | None = None,
    images: str = "images",
    answer: str | None = None,
) -> TaskSet:
    """Without `held_out`, held-out tasks are taken from the training file. Without `train`, a model can be
    evaluated but not trained. `prompt`: what the user asks in place of the file's words, with `{question}`,
    or whatever text `extra_info` has, in it. `interactions`: a YAML file of simulated users, one of whom
    answers each task (docs/agents.md). `images`: the column with the images that `<image>` in a prompt
    stands for. `answer`: the column with the right answer, or a list of them, where it is not
    `reward_model.ground_truth`."""
    reader = partial(task_of_row, images=images, answer=answer)
    learned, judged = splits(
        reader if prompt is None else _asking(prompt, reader),
        task="file",
        sizes=sizes,
        train=train,
        held_out=held_out,
    )
    if interactions is not None:
        known = read_interactions(Path(interactions))
        learned = [with_interaction(task, known) for task in learned]
        judged = [with_interaction(task, known) for task in judged]
    return task_set(learned, judged)


def task_set(learned: list[Task], judged: list[Task]) -> TaskSet:
    """Tasks of files, with the scorer that their data source names."""
    every = [*learned, *judged]
    sources = {task.data_source for task in every}
    return TaskSet(
        train=learned,
        held_out=judged,
        # A scorer is registered under the data sources that it serves, so one source is its scorer's name.
        scorer=sources.pop() if len(sources) == 1 else "data_source",
        alphabet="".join(sorted(set().union(*(characters_of(task) for task in every)))),
    )


def splits(
    task_of: TaskReader,
    *,
    task: str,
    sizes: SplitSizes,
    train: str | list[str] | None,
    held_out: str | list[str] | None,
    every_row: bool = False,
) -> tuple[list[Task], list[Task]]:
    """Training and held-out tasks of the files that the settings of task `task` name. `every_row`: of a
    prompt that is held out, all rows are judged, and not the first alone."""
    if not train and not held_out:
        raise UserError(
            f"task={task} needs task.train, a Parquet or JSON lines file, or task.held_out for eval"
        )
    train = train or []
    learned = _tasks_of_all(task_of, train)
    if held_out is None:
        learned, judged = _divided(learned, sizes=sizes, every_row=every_row)
    else:
        same_name = {Path(path).name for path in _listed(train)} & {
            Path(path).name for path in _listed(held_out)
        }
        judged = _tasks_of_all(
            task_of, held_out, prefix="held_out/" if same_name and train != held_out else "", split="test"
        )
        judged = _spread(judged, min(sizes.held_out, len(judged)))
        if train and sizes.train is not None:
            if sizes.train > len(learned):
                shown = ", ".join(_listed(train))
                raise UserError(f"task.train_size={sizes.train}, but {shown} has {len(learned)} tasks")
            learned = _spread(learned, sizes.train)
    return learned, judged


def _tasks_of_all(
    task_of: TaskReader, files: str | list[str], prefix: str = "", split: str = "train"
) -> list[Task]:
    """The tasks of all files. Files of the same name are numbered in the ids."""
    for place in _listed(files):
        _must_be_there(Path(place))
    paths = [path for place in _listed(files) for path in data_files(place, split)]
    names = [path.name for path in paths]
    places = [f"{place}/" if names.count(path.name) > 1 else "" for place, path in enumerate(paths, 1)]
    return [
        task
        for path, place in zip(paths, places, strict=True)
        for task in tasks_of(path, prefix + place, task_of)
    ]


def _must_be_there(path: Path) -> None:
    """Raise a UserError for a missing file. If it is named after a data set, say how to prepare it."""
    known = [name for name in DATASETS.names() if path.name.startswith(f"{name}_")]
    if known and not path.expanduser().exists():
        name = max(known, key=len)
        raise UserError(
            f"no such file: {path}; `toolwright data prepare {name} --out {path.parent}` makes it"
        )


def _listed(files: str | list[str]) -> list[str]:
    return [files] if isinstance(files, str) else files


def tasks_of(path: Path, prefix: str = "", task_of: TaskReader | None = None) -> list[Task]:
    """The tasks of a file, each known by the file's name and its row, wherever the file lies."""
    return [
        (task_of or task_of_row)(row, id=f"{prefix}{path.name}:{number}", where=f"{path}, row {number}")
        for number, row in enumerate(read(path), 1)
    ]


def task_of_row(row: Row, *, id: str, where: str, images: str = "images", answer: str | None = None) -> Task:
    if row.get("prompt") is None:
        raise UserError(
            f"{where}: there is no `prompt`; the row has {', '.join(row) or 'nothing'}. To name the columns, "
            "run toolwright data prepare hub FILE --map prompt=… --map answer=…"
        )
    rest = {key: value for key, value in row.items() if key not in (*OWN, images, answer)}
    extra = row.get("extra_info", rest)
    if extra is not None and not isinstance(extra, dict):
        raise UserError(f"{where}: `extra_info` must be an object, found {type(extra).__name__}")
    source = row.get("data_source")
    return Task(
        id=id,
        prompt=_prompt(row, where, images),
        ground_truth=_ground_truth(row, where) if answer is None else _answer(row, answer, where),
        data_source="" if source is None else str(source),
        extra_info=extra or {},
    )


def _prompt(row: Row, where: str, column: str) -> list[dict[str, Any]]:
    """The messages, with the images of the row's own column in their places."""
    folder = Path(where.rpartition(", row ")[0]).expanduser().parent
    found = row.get(column)
    if not found:
        return messages_of(row["prompt"], where, folder=folder)
    messages = messages_of(_marked(row["prompt"]), where, folder=folder)
    listed = found if isinstance(found, list) else [found]
    urls = [
        read_image(one, f"{where}: image {number} of `{column}`", folder=folder)
        for number, one in enumerate(listed, 1)
    ]
    return with_images(messages, urls, mark=MARK, where=where)


def _marked(prompt: Any) -> Any:
    """Image parts without an image take the next one of the column as well."""

    def marked(part: Any) -> Any:
        bare = (
            isinstance(part, dict) and part.get("type") == PART and not any(map(part.get, ("image", "url")))
        )
        return {"type": "text", "text": MARK} if bare else part

    return (
        [
            {**message, "content": [marked(part) for part in message["content"]]}
            if isinstance(message, dict) and isinstance(message.get("content"), list)
            else message
            for message in prompt
        ]
        if isinstance(prompt, list)
        else prompt
    )


def _asking(words: str, task_of: TaskReader) -> TaskReader:
    """Tasks whose last message of the user are these words, names in braces replaced by what a row has."""

    def read(row: Row, *, id: str, where: str) -> Task:
        task = task_of(row, id=id, where=where)
        known = {name: value for name, value in task.extra_info.items() if isinstance(value, str)}
        for name in dict.fromkeys(re.findall(r"\{(\w+)\}", words)):
            if name not in known:
                raise UserError(
                    f"{where}: task.params.prompt has {{{name}}}, which is not a text in the row's "
                    f"extra_info; it has {', '.join(known) or 'none'}"
                )
        text = re.sub(r"\{(\w+)\}", lambda match: known[match[1]], words)
        said: str | list[dict[str, Any]] = text
        if urls := images_in(task.prompt[-1:]):  # a question in other words is about the same images
            said = [*map(part_of, urls), {"type": "text", "text": text}]
        return replace(task, prompt=[*task.prompt[:-1], {"role": "user", "content": said}])

    return read


def _answer(row: Row, column: str, where: str) -> Any:
    """The answer in a column of its own. A list of one answer is that answer."""
    if column not in row:
        raise UserError(f"{where}: there is no `{column}`; the row has {', '.join(row)}")
    found = row[column]
    return found[0] if isinstance(found, list) and len(found) == 1 else found


def _ground_truth(row: Row, where: str) -> Any:
    if "reward_model.ground_truth" in row:
        truth = row["reward_model.ground_truth"]
    else:
        reward_model = row.get("reward_model")
        if reward_model is not None and not isinstance(reward_model, dict):
            raise UserError(
                f"{where}: `reward_model` must be an object with `ground_truth`, "
                f"found {type(reward_model).__name__}"
            )
        truth = (reward_model or {}).get("ground_truth")
    # Data frames write a missing value as NaN.
    return None if isinstance(truth, float) and math.isnan(truth) else truth


def _divided(tasks: Sequence[Task], *, sizes: SplitSizes, every_row: bool) -> tuple[list[Task], list[Task]]:
    """Split off held-out tasks. Rows with the same prompt stay together, so that none is trained on."""
    by_prompt: dict[str, list[Task]] = {}
    for task in tasks:
        by_prompt.setdefault(json.dumps(task.prompt, sort_keys=True), []).append(task)
    alike = list(by_prompt.values())
    if sizes.held_out >= len(alike):
        raise UserError(
            f"task.held_out_size={sizes.held_out} leaves nothing to train on: the training file has "
            f"{len(alike)} different prompts; hold out fewer, or name another file as task.held_out"
        )
    _, places = draw([len(alike)], replace(sizes, train=1))
    held = {index for _, index in places}
    kept = None if every_row else 1
    judged = [task for index, group in enumerate(alike) if index in held for task in group[:kept]]
    learned = [task for index, group in enumerate(alike) if index not in held for task in group]
    if sizes.train is not None and sizes.train > len(learned):
        raise UserError(
            f"task.train_size={sizes.train}, but {len(learned)} tasks of the training file are left "
            f"when {sizes.held_out} are held out"
        )
    return _spread(learned, sizes.train or len(learned)), judged


def _spread(tasks: list[Task], count: int) -> list[Task]:
    """`count` tasks from all over the file, since files are often sorted; the same for every seed."""
    return [tasks[index * len(tasks) // count] for index in range(count)]


def characters_of(task: Task) -> set[str]:
    text = "".join(text for message in task.prompt for text in texts_of(message.get("content")))
    truth = task.ground_truth
    return set(text) | set(truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False))
