"""One call of the interface: a user's Python objects turned into the words that a command line would have."""

from __future__ import annotations

import functools
import json
import re
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolwright.config.from_words import from_words
from toolwright.failures import UserError
from toolwright.registry import hold, release
from toolwright.tasks import TaskSet
from toolwright.trajectory import Task

SCORES = "f(data_source, solution_str, ground_truth, extra_info) or f(completions, **columns)"


class UserRequest:
    """`words` for the configuration, and the objects that only this process has, until it is closed."""

    def __init__(
        self,
        command: str,
        words: Sequence[str],
        *,
        model: str | Path | None = None,
        reward: Any = None,
        tools: Sequence[Any] = (),
        task: Any = None,
        environment: Any = None,
        estimator: Any = None,
    ) -> None:
        self.command, self.words = command, list(words)
        self._held: dict[str, tuple[str, Any]] = {}  # what the user wrote, by reference
        try:
            if model is not None:
                self._set("model.path", str(_checked("model", model, str | Path, "a folder")))
            if reward is not None:
                self._set("reward.function", self._named("reward", reward, f"a function {SCORES}"))
            if estimator is not None:
                expected = "a function of (rewards, mask, group, …)"
                self._set("algorithm.adv_estimator", self._named("estimator", estimator, expected))
            self._add_tools(tools)
            self._add_tasks(task, environment)
        except BaseException:
            self.close()
            raise

    def config(self) -> Any:
        """The whole configuration, with what cannot work in it refused."""
        config = from_words(self.command, self.words)
        runtime = getattr(config, "runtime", None)
        if runtime is not None and runtime.name == "ray":
            for keyword, target in self._held.values():
                if keyword != "task":  # tasks are made here, and travel as data
                    raise UserError(
                        f"{keyword}={_name(target)} cannot be sent to Ray's workers: {_reason(target)}; "
                        "define it at the top of a module, import it from there, and pass that"
                    )
        return config

    def close(self) -> None:
        """Forget the objects."""
        for reference in self._held:
            release(reference)

    def __enter__(self) -> UserRequest:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _set(self, key: str, value: str) -> None:
        if not re.fullmatch(r"[\w./:-]+", value):  # Hydra would read more into it than a text
            escaped = value.replace("'", "\\'")
            value = f"'{escaped}'"
        self.words.append(f"{key}={value}")

    def _named(self, keyword: str, target: Any, expected: str) -> str:
        """The name or reference that was given, or one for the object that was."""
        if isinstance(target, str):
            return target
        if not callable(target):
            raise UserError(f"{keyword}={target!r:.80}: expected {expected}, found {_kind(target)}")
        return _importable(target) or self._hold(keyword, target)

    def _hold(self, keyword: str, target: Any, name: str = "") -> str:
        reference = hold(name or _name(target), target)
        self._held[reference] = (keyword, target)
        return reference

    def _add_tools(self, tools: Any) -> None:
        if callable(tools) or isinstance(tools, str | Mapping) or not hasattr(tools, "__iter__"):
            given = tools if isinstance(tools, str) else _name(tools)
            raise UserError(f"tools={given}: expected a list, such as tools=[my_tool], found {_kind(tools)}")
        labels: set[str] = set()
        for tool in tools:
            path = self._named("tools", tool, "a function with a docstring, a class, or a tool's name")
            label = path if isinstance(tool, str) and ":" not in tool else _name(tool)
            if label in labels:
                raise UserError(f"two tools are called {label!r}; give one of them another name")
            labels.add(label)
            if path == label:
                self.words.append(f"tools.{label}={{}}")
            else:
                self._set(f"tools.{label}.path", path)

    def _add_tasks(self, task: Any, environment: Any) -> None:
        if environment is not None and (task is None or isinstance(task, str)):
            raise UserError("environment=… needs task=…, the tasks that are attempted in it")
        if task is None:
            return
        if isinstance(task, str):
            self.words.append(f"task={task}")
            return
        world = None
        if environment is not None:
            world = self._named("environment", environment, "a class with reset, step and close")
        if world is None and callable(task) and (reference := _importable(task)):
            name = reference
        else:
            name = self._hold("task", _builder(task, world), name=_name(task) if callable(task) else "tasks")
        # The preset of files: how long prompts and answers may be follows from the tasks themselves.
        self.words.append("task=file")
        self._set("task.name", name)


def _builder(task: Any, environment: str | None) -> Callable[..., TaskSet]:
    """A function that builds the task set, as the configuration wants it named."""
    if callable(task):

        @functools.wraps(task)
        def build(**settings: Any) -> Any:
            made = task(**settings)
            return _completed(made, environment) if isinstance(made, TaskSet) else made

        return build
    if isinstance(task, list | tuple) and task and all(isinstance(one, Task) for one in task):
        task = TaskSet(train=task)
    if not isinstance(task, TaskSet):
        raise UserError(
            f"task={task!r:.80}: expected a TaskSet, a list of Tasks, or a function that returns a TaskSet; "
            f"found {_kind(task)}"
        )
    whole = _completed(task, environment)
    return lambda: whole


def _completed(tasks: TaskSet, environment: str | None) -> TaskSet:
    """Add the environment to every task, and the characters that a character-level model must know."""
    if environment is not None:
        tasks = replace(
            tasks,
            train=[_played(task, environment) for task in tasks.train],
            held_out=[_played(task, environment) for task in tasks.held_out],
            scorer=tasks.scorer or "environment",
        )
    if not tasks.alphabet:
        every = [*tasks.train, *tasks.held_out]
        told = json.dumps([[task.prompt, task.ground_truth] for task in every], ensure_ascii=False)
        tasks = replace(tasks, alphabet="".join(sorted({*told, *string.printable})))
    return tasks


def _played(task: Task, environment: str) -> Task:
    settings = task.extra_info.get("environment") or {}
    return replace(task, extra_info={**task.extra_info, "environment": {"name": environment, **settings}})


def _importable(target: Any) -> str | None:
    """`module:name`, if that leads to this very object in another process too."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", "")
    if not module or module == "__main__" or not name.isidentifier():
        return None
    found = getattr(sys.modules.get(module), name, None)
    return f"{module}:{name}" if found is target else None


def _reason(target: Any) -> str:
    """Why no other process can import it."""
    name = getattr(target, "__qualname__", "")
    if "<lambda>" in name:
        return "it is a lambda"
    if "<locals>" in name:
        return "it is defined inside a function"
    if not name:
        return f"it is an object of the class {type(target).__name__}, and not a function or a class itself"
    return "it is defined in a script or a notebook"


def _name(target: Any) -> str:
    name = target.rpartition(":")[2] if isinstance(target, str) else getattr(target, "__name__", "")
    return re.sub(r"\W", "", name) or type(target).__name__


def _kind(target: Any) -> str:
    name = type(target).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _checked(keyword: str, value: Any, kind: Any, expected: str) -> Any:
    if not isinstance(value, kind):
        raise UserError(f"{keyword}={value!r:.80}: expected {expected}, found {_kind(value)}")
    return value
