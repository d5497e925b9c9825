"""Interactions: a simulated user who answers what the policy says, until content.

A class has verl's four methods: `start_interaction`, `generate_response`, `calculate_score` and
`finalize_interaction`, all coroutines. A file lists classes by name, as verl's `interaction_config_path`
does, and a task says which of them answers: `extra_info.interaction_kwargs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from toolwright.config.yaml_file import read_yaml
from toolwright.failures import UserError, nearest
from toolwright.registry import Registry
from toolwright.tasks.verl_modules import load_for_verl
from toolwright.trajectory import Task

SUFFIX = "Interaction"
KEY, ARGUMENTS = "interaction", "interaction_kwargs"  # in a task's extra_info: ours, and verl's


class Interaction(Protocol):
    """One object answers many attempts at once; what it knows of one is kept under `instance_id`."""

    async def start_interaction(self, instance_id: str, **kwargs: Any) -> Any: ...

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, Mapping[str, Any]]:
        """(whether the attempt is over, what the user says, what the turn is worth, anything else)"""
        ...

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> Any: ...


INTERACTIONS: Registry[type[Interaction]] = Registry("interaction", "toolwright.tasks.interactions")


def read_interactions(path: Path) -> dict[str, dict[str, Any]]:
    """`{name: {class, config}}` of a file of verl's form."""
    entries = read_yaml(path.expanduser()).get("interaction")
    if not isinstance(entries, list):
        raise UserError(f"{path}: expected `interaction:`, a list of entries with class_name and config")
    found: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries):
        place = f"{path}: interaction[{number}]"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("class_name"), str):
            raise UserError(f"{place}: expected an entry with class_name and config")
        name = str(entry.get("name") or _short(entry["class_name"]))
        if name in found:
            raise UserError(f"{place}: a second interaction called {name!r}")
        found[name] = {"class": entry["class_name"], "config": {**(entry.get("config") or {}), "name": name}}
        class_of(found[name]["class"])  # a mistake fails before the run starts
    return found


def class_of(name: str) -> type[Interaction]:
    """Ours by its name, which verl's is known by too; or the user's: `path.py:Class`, `package.Class`."""
    short = _short(name)
    if ":" not in name and short in INTERACTIONS.names():
        return INTERACTIONS.get(short).target
    reference = name if ":" in name else ":".join(name.rpartition(".")[::2])
    found: type[Interaction] = load_for_verl(reference)
    missing = [one for one in ("start_interaction", "generate_response") if not hasattr(found, one)]
    if missing:
        raise UserError(f"interaction {name!r} has no `async def {missing[0]}`")
    return found


def with_interaction(task: Task, known: Mapping[str, Mapping[str, Any]]) -> Task:
    """The task with the class that answers it and its arguments, as its row names them."""
    arguments = task.extra_info.get(ARGUMENTS) or {}
    name = str(arguments.get("name") or (next(iter(known)) if len(known) == 1 else ""))
    if name not in known:
        raise UserError(
            f"task {task.id}: extra_info.{ARGUMENTS}.name={name!r} is not an interaction of the file; "
            f"{nearest(name, known)}"
        )
    own = {**known[name], "arguments": {"ground_truth": task.ground_truth, **arguments}}
    extra = {key: value for key, value in task.extra_info.items() if key != ARGUMENTS}
    return Task(task.id, task.prompt, task.ground_truth, task.data_source, {**extra, KEY: own})


def _short(name: str) -> str:
    """`verl.interactions.gsm8k_interaction.Gsm8kInteraction` → `gsm8k`."""
    last = name.rpartition(":")[2].rpartition(".")[2]
    return last.removesuffix(SUFFIX).lower() if last.endswith(SUFFIX) else last.lower()
