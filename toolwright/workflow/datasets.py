"""Data sets that workflows are searched on: tasks to search by, tasks to be judged by, and their scorer."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from toolwright.failures import UserError, nearest
from toolwright.tasks.builtin.file import tasks_of
from toolwright.tasks.datasets import DATASETS
from toolwright.tasks.public_tests import called, examples
from toolwright.trajectory import Task

ALIASES = {"math": "math500", "aime25": "aime", "hotpot_qa": "hotpotqa"}
# Which files a search may look at, the best first; what is left of one file is the other's.
_VALIDATION = ("validation", "validate", "train")
_TEST = ("test",)
_SHARE = 0.2  # of a single file that is searched by, as AFlow divides them


@dataclass(frozen=True)
class DataSet:
    """Tasks in two splits that share none."""

    name: str
    validation: Sequence[Task]
    test: Sequence[Task]
    scorer: str  # registered under the data source's name
    digest: str = ""  # of all tasks, before they were cut to size: their texts, answers and extras

    @property
    def offers(self) -> frozenset[str]:
        """What its tasks have of the operators' `needs`."""
        every = (*self.validation, *self.test)
        offers = {"entry_point"} if all(task.extra_info.get("entry_point") for task in every) else set()
        tested = any(task.extra_info.get("public_tests") for task in every)
        return frozenset(offers | ({"public_tests"} if tested else set()))


def load(
    name: str,
    *,
    folder: Path = Path("data"),
    validation_size: int | None = None,
    test_size: int | None = None,
    seed: int = 0,
) -> DataSet:
    """By name, from the files that `toolwright data prepare NAME` wrote; or any task file by its path."""
    known = ALIASES.get(name, name)
    if known in DATASETS.names():
        files = _files(known, folder)
        label = name
    elif Path(name).expanduser().is_file():
        files, label = {"": Path(name).expanduser()}, Path(name).name.split(".")[0]
    else:
        hint = (
            nearest(name, sorted({*DATASETS.names(), *ALIASES}))
            if "/" not in name and "." not in name
            else "and there is no such file"
        )
        raise UserError(f"no data set is called {name!r}; {hint}")
    extra = _public_tests(known, folder)
    validation, test = _splits(files, seed=seed)
    validation, test = ([adapted(task, extra) for task in tasks] for tasks in (validation, test))
    every = (*validation, *test)
    sources = {task.data_source for task in every}
    _check_scorers(sources, label)
    return DataSet(
        label,
        _sized(validation, validation_size, f"of {label} to search by", "search.tasks"),
        _sized(test, test_size, f"of {label} to be judged by", "search.held_out"),
        sources.pop() if len(sources) == 1 else "data_source",
        _digest(every),
    )


def _check_scorers(sources: Iterable[str], label: str) -> None:
    """Refuse tasks that nothing can score, before any of them is paid for."""
    from toolwright.rewards.builder import SCORERS, scorer_for

    for source in sorted(sources):
        if scorer_for(source) not in SCORERS.names() and ":" not in source:
            found = f"data_source={source!r}" if source else "no data_source"
            raise UserError(
                f"tasks of {label} have {found}: write the name of a scorer there, such as numeric or exact, "
                "or path.py:name of your own"
            )


def _digest(tasks: Iterable[Task]) -> str:
    """The same for the same tasks, in whatever order a seed has put them."""
    texts = (json.dumps(asdict(task), sort_keys=True, default=str) for task in tasks)
    whole = "\n".join(sorted(texts)).encode("utf-8", "replace")
    return hashlib.blake2b(whole, digest_size=16).hexdigest()


def adapted(task: Task, public: Mapping[str, list[str]] | None = None) -> Task:
    """With the entry point and the public tests of a task about code, where they can be found."""
    truth, extra = task.ground_truth, dict(task.extra_info)
    if not isinstance(truth, dict):
        return task
    entry = extra.get("entry_point") or truth.get("entry_point") or called(truth.get("tests"))
    if not entry:
        return task
    tests = (public or {}).get(entry) or extra.get("public_tests")
    if tests is None and isinstance(truth.get("tests"), list):
        tests = truth["tests"][:1]  # MBPP's prompt shows the first, and that one alone
    if tests is None:
        tests = examples(str(extra.get("declaration", "")), entry)
    return replace(task, extra_info={**extra, "entry_point": entry, "public_tests": tests})


def _files(name: str, folder: Path) -> dict[str, Path]:
    """Split to file, of those that are there."""
    paths = sorted(folder.expanduser().glob(f"{name}*.parquet"))
    found = {}
    for path in paths:
        split = path.stem.removeprefix(name).strip("_")
        for alias in (alias for alias, known in ALIASES.items() if known == name):
            split = split.removeprefix(f"{alias}_")  # math500_math_validate, of AFlow's file
        found[split] = path
    if not found:
        raise UserError(
            f"the data set {name!r} is not in {folder.resolve()}: run `toolwright data prepare {name} "
            f"--out {folder}`, or with --from FILE if there is no network"
        )
    return found


def _splits(files: Mapping[str, Path], *, seed: int) -> tuple[list[Task], list[Task]]:
    """Two files where there are two; else one divided by a seed."""
    searched = next((files[split] for split in _VALIDATION if split in files), None)
    judged = next((files[split] for split in _TEST if split in files), None)
    if searched is not None and judged is not None:
        return _shuffled(tasks_of(searched), seed), _shuffled(tasks_of(judged), seed)
    tasks = _shuffled(tasks_of(searched or judged or next(iter(files.values()))), seed)
    cut = max(1, round(_SHARE * len(tasks)))
    if cut >= len(tasks):
        raise UserError(f"a data set needs at least 2 tasks to be divided, found {len(tasks)}")
    return tasks[:cut], tasks[cut:]


def _shuffled(tasks: list[Task], seed: int) -> list[Task]:
    return random.Random(seed).sample(tasks, len(tasks))


def _sized(tasks: list[Task], size: int | None, purpose: str, key: str) -> list[Task]:
    if size is not None and size > len(tasks):
        found = len(tasks)
        there = "is 1 task" if found == 1 else f"are {found} tasks"
        raise UserError(f"there {there} {purpose}, not {size}: set {key}={found}, or add tasks")
    return tasks if size is None else tasks[:size]


def _public_tests(name: str, folder: Path) -> dict[str, list[str]]:
    """AFlow's file of public tests, where it lies beside the data: by the function that they test."""
    from toolwright.tasks.rows import read

    path = folder.expanduser() / f"{name}_public_test.jsonl"
    if not path.is_file():
        return {}
    return {str(row["entry_point"]): [str(test) for test in row["test"]] for row in read(path)}
