"""Teach a model a tool in one go: a cold start on what it solves itself, then reinforcement learning.

A recipe is two presets: `sft --config-name NAME_start`, then `train --config-name NAME` from its weights. A
setting goes to each of the two that has such a key; `start.rollout.samples=8` goes to the cold start alone.
A recipe of the same run.name goes on where it was stopped: a cold start that is done is not run again.

Examples:
  toolwright recipe                                   the recipes there are
  toolwright recipe gsm8k_python model.path=FOLDER task.train=data/gsm8k_train.parquet
  toolwright recipe gsm8k_python run.name=mine start.steps=20 train.steps=100 …
  toolwright recipe gsm8k_python --dry-run            the two commands
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolwright.failures import UserError, nearest

if TYPE_CHECKING:
    from toolwright.config.compose import Source

START = "_start"  # what the name of a cold start's preset ends with
DRY_RUN = "--dry-run"


def main(argv: list[str]) -> int:
    known = recipes()
    words = [word for word in argv if word != DRY_RUN]
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: toolwright recipe NAME [key=value …] [{DRY_RUN}]\n\n{__doc__}")
        print("Recipes: " + ", ".join(known))
        return 0
    name, *settings = words
    if name not in known:
        raise UserError(f"unknown recipe {name!r}; {nearest(name, known)}")
    return _run(name, settings, dry=DRY_RUN in argv)


def recipes() -> list[str]:
    """The names of presets that have a cold start beside them."""
    from toolwright.config.compose import preset_folders

    names = {file.stem for folder in preset_folders() for file in folder.glob("*.yaml")}
    return sorted(name for name in names if f"{name}{START}" in names)


def _run(name: str, settings: Sequence[str], *, dry: bool) -> int:
    from toolwright.config.compose import Source, resolve
    from toolwright.config.schema import SupervisedConfig
    from toolwright.observe.run_folders import is_run, state

    start, train = Source("sft", None, f"{name}{START}"), Source("train", None, name)
    for_start, for_train = _shared(settings, start, train)
    own = [word for word in for_train if not word.startswith("run.name=")]
    called = next((word.partition("=")[2] for word in for_train if word.startswith("run.name=")), name)
    for_start = [w for w in for_start if not w.startswith(("run.name=", "run.resume="))]
    for_start.append(f"run.name={called}{START}")
    begun = resolve(start, for_start).config
    assert isinstance(begun, SupervisedConfig)
    folder = Path(begun.run.dir) / f"{called}{START}"
    model = folder / "model"
    for_train = [w for w in own if not w.startswith("model.path=")]
    for_train += [f"run.name={called}", f"model.path={model}"]
    resolve(train, for_train)  # a mistake is heard of before the first of the two has run
    done = is_run(folder) and state(folder).status == "finished"
    if is_run(folder) and not done:
        for_start.append("run.resume=true")
    commands = [["sft", *start.flags, *for_start], ["train", *train.flags, *for_train]]
    for command in commands:
        print(shlex.join(["toolwright", *command]), flush=True)
    if dry:
        return 0
    if done:
        print(f"the cold start is done: {model}", flush=True)
    # In a process of its own, which leaves nothing of its memory on the GPU.
    elif status := subprocess.run([sys.executable, "-m", "toolwright", *commands[0]]).returncode:
        return status
    from toolwright.cli import main as run

    return run(commands[1])


def _shared(words: Sequence[str], start: Source, train: Source) -> tuple[list[str], list[str]]:
    """The settings that each of the two knows."""
    from toolwright.config.compose import composer
    from toolwright.config.validate import format_problems

    with composer(start) as of_start:
        problems = {word: of_start.parse([word.removeprefix("start.")]).problems for word in words}
    own = {word.removeprefix("start.").partition("=")[0] for word in words if word.startswith("start.")}
    for_start = [
        word.removeprefix("start.")
        for word in words
        if not problems[word] and (word.startswith("start.") or word.partition("=")[0] not in own)
    ]
    of_both = [word for word in words if not word.startswith("start.")]
    with composer(train) as of_train:
        unknown = {word: of_train.parse([word]).problems for word in of_both}
    lost = [
        *(problem for word in words if word.startswith("start.") for problem in problems[word]),
        *(problem for word in of_both if problems[word] for problem in unknown[word]),
    ]
    if lost:
        raise UserError(format_problems(lost))
    return for_start, [word for word in of_both if not unknown[word]]
