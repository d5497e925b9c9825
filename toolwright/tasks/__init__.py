"""Tasks by name, each with its splits and its scorer, and the environments that some of them use."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from toolwright.failures import UserError
from toolwright.registry import Registry, check_settings, signature_of
from toolwright.tasks.environment import (
    ENVIRONMENTS,
    Environment,
    InvalidAction,
    Observation,
    Outcome,
    answers_to,
)
from toolwright.tasks.own_loop import OwnLoop
from toolwright.trajectory import Task

if TYPE_CHECKING:
    from toolwright.config import schema

Demonstrate = Callable[[Task, random.Random], list[dict[str, Any]]]


@dataclass(frozen=True)
class TaskSet:
    """Training tasks, held-out tasks, and what both need."""

    train: Sequence[Task]
    held_out: Sequence[Task] = ()
    scorer: str = ""  # the registered scorer that is the task's own
    alphabet: str = ""  # every character prompts and answers may need, for a character-level tokenizer
    demonstrate: Demonstrate | None = None  # assistant messages that solve a task, for the warm start


@dataclass(frozen=True)
class SplitSizes:
    """The numbers of tasks to train on and to hold out, and the seed of the draw."""

    seed: int
    train: int | None
    held_out: int


# A builder takes what it needs of `sizes`, or of `seed`, `train_size` and `held_out_size` one by one, and of
# `train` and `held_out`, by name; its other parameters are what `task.params` may set.
Builder = Callable[..., TaskSet]
TASKS: Registry[Builder] = Registry("task", "toolwright.tasks.builtin")


def load(config: schema.TaskConfig, *, seed: int, learns: bool = True) -> TaskSet:
    """Build the task set that the configuration names. `learns=False`: it need not have training tasks."""
    entry = TASKS.get(config.name)
    settings = {
        "sizes": SplitSizes(seed, config.train_size, config.held_out_size),
        "seed": seed,
        "train_size": config.train_size,
        "held_out_size": config.held_out_size,
        "train": config.train,
        "held_out": config.held_out,
    }
    accepted = entry.accepted(**settings)
    for key in ("train", "held_out"):
        if settings[key] is not None and key not in accepted:
            raise UserError(
                f"task.{key} names a file, which task {config.name!r} does not read; use task=file"
            )
    parameters = signature_of(entry.target).parameters.values()
    params = check_settings(
        f"task {entry.name!r}", parameters, config.params, prefix="task.params.", reserved=set(settings)
    )
    tasks = entry.target(**accepted, **params)
    if not isinstance(tasks, TaskSet):
        raise UserError(
            f"task {config.name!r} built a {type(tasks).__name__}, not a toolwright.tasks.TaskSet"
        )
    if not {"sizes", "train_size"} & accepted.keys() and config.train_size is not None:
        tasks = replace(tasks, train=tasks.train[: config.train_size])
    if not {"sizes", "held_out_size"} & accepted.keys():
        tasks = replace(tasks, held_out=tasks.held_out[: config.held_out_size])
    if learns and not tasks.train:
        unset = "; set task.train" if config.train is None and "train" in accepted else ""
        raise UserError(f"task {config.name!r} has no training tasks{unset}")
    return tasks
