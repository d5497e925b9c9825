"""`toolwright`, killed -9 at a chosen moment of a chosen step.

What a machine that loses its power does to a run, but at the same place every time.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from toolwright.cli import main
from toolwright.learner import checkpoints
from toolwright.observe.metrics import Metrics
from toolwright.trainer import run_folder


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def once_it_is_written(step: int) -> None:
    save = checkpoints.save

    def and_die(folder: Path, number: int, *args: Any, **kwargs: Any) -> Path:
        path = save(folder, number, *args, **kwargs)
        if number == step:
            die()
        return path

    checkpoints.save = and_die


def half_way_through_its_tensors(step: int) -> None:
    save = torch.save

    def half(tensors: Any, path: Path) -> None:
        save(tensors, path)
        if path.parent.name == f"step_{step}.partial":
            os.truncate(path, path.stat().st_size // 2)
            die()

    torch.save = half


def before_it_has_its_name(step: int) -> None:
    flush = checkpoints._flush

    def and_die(path: Path) -> None:
        flush(path)
        if path.name == f"step_{step}.partial":
            die()

    checkpoints._flush = and_die


def while_the_model_is_replaced(step: int) -> None:
    """The old one has gone, the new one is not in its place."""
    rename = Path.rename

    def and_die(path: Path, target: Path) -> Path:
        moved = rename(path, target)
        if target.name == "model.old" and (path.parent / f"checkpoints/step_{step}").exists():
            die()
        return moved

    Path.rename = and_die  # type: ignore[method-assign, assignment]


def before_its_attempts_are_kept(step: int) -> None:
    """Sampled and learned from, but neither recorded nor checkpointed."""
    save = run_folder.RunFolder.save_rollouts

    def or_die(folder: run_folder.RunFolder, number: int, *args: Any) -> None:
        if number == step:
            die()
        save(folder, number, *args)

    run_folder.RunFolder.save_rollouts = or_die  # type: ignore[method-assign]


def before_its_metrics_are_written(step: int) -> None:
    append = Metrics.append

    def or_die(file: Metrics, number: int, values: Any) -> None:
        if number == step:
            die()
        append(file, number, values)

    Metrics.append = or_die  # type: ignore[method-assign]


def run(moment: str, step: int, line: list[str], cwd: Path) -> None:
    """In a process of its own: the moments above are never undone."""
    os.chdir(cwd)
    sys.stdout = sys.stderr = (cwd / "said.txt").open("w", buffering=1)
    globals()[moment](step)
    sys.exit(main(line))
