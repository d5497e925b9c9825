"""Small runs of the Python interface, and objects that a module has and a script does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolwright import TaskSet, Trainer
from toolwright.trajectory import Task

SMALL = (
    *("task=reverse", "task.train_size=64", "task.held_out_size=4", "task.params.max_length=3"),
    *("model.layers=1", "model.width=16", "model.heads=2", "model.kv_heads=2", "model.ffn=32"),
    *("rollout.prompts=2", "rollout.samples=4", "train.steps=3", "algorithm.kl.where=none"),
)


def small(folder: Path, *words: str, name: str = "run", **own: Any) -> Trainer:
    """A trainer of three steps that keeps its run in `folder`."""
    said = {word.partition("=")[0] for word in words}
    usual = [word for word in SMALL if word.partition("=")[0] not in said]
    usual = [word for word in usual if "task" not in own or not word.startswith("task")]
    return Trainer(*usual, f"run.dir={folder}", f"run.name={name}", *words, **own)


def first_letter(solution_str: str, ground_truth: str) -> float:
    """A reward that differs between attempts from the first step on."""
    return float(solution_str[:1] == ground_truth[:1])


def louder(text: str) -> str:
    """Say a text louder.

    Args:
        text: What to say.
    """
    return text.upper()


def letters() -> TaskSet:
    def task(letter: str) -> Task:
        return Task(letter, [{"role": "user", "content": f"{letter}?"}], ground_truth=letter)

    return TaskSet(train=[task(letter) for letter in "abcdefgh"], held_out=[task("x"), task("y")])
