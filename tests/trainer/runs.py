"""Runs small enough for a test: the words that ask for them, in this process or in one of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.settings import configure
from toolwright.config import schema
from toolwright.observe.metrics import Metrics
from toolwright.record import TokenValues, load, load_token_values
from toolwright.tasks import TaskSet
from toolwright.tasks import load as load_task_set
from toolwright.trainer.loop import train
from toolwright.trajectory import Trajectory

HERE = Path(__file__).resolve().parent
MODEL = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "ffn": 64, "context": 32}
AGENTS = {
    "letters": "single_turn",
    "rooms": f"{HERE.parents[1]}/benchmarks/step_reward_tasks.py:Walker",
    "riddles": f"{HERE}/riddles.py:Asker",
}


def words(*own: str, task: str = "letters") -> list[str]:
    """A command line of one small run; what a test says itself wins."""
    small = [
        *(f"model.{key}={value}" for key, value in MODEL.items()),
        f"task.name={HERE}/{task}.py:tasks",
        "task.held_out_size=8",
        f"rollout.agent={AGENTS[task]}",
        f"rollout.max_tokens={2 if task == 'letters' else 1}",
        "rollout.prompts=4",
        "rollout.samples=4",
        "rollout.retry_pause_s=0.01",
        "update.policy.lr=1e-2",
        "train.steps=2",
        "eval.every=0",
        "run.threads=1",
    ]
    return list({word.split("=")[0]: word for word in [*small, *own]}.values())


def configured(*own: str, task: str = "letters") -> schema.Config:
    return configure(words(*own, task=task))


def load_tasks(config: schema.Config) -> TaskSet:
    return load_task_set(config.task, seed=config.run.seed)


def trained(runs: Path, *own: str, task: str = "letters") -> Path:
    """The folder of a whole run in this process."""
    config = configured(f"run.dir={runs}", *own, task=task)
    return train(config, command=["toolwright", "train", *own])


def toolwright(*line: str, cwd: Path, timeout: float = 400) -> subprocess.CompletedProcess[str]:
    """The command itself, in a process of its own."""
    command = [sys.executable, "-m", "toolwright", *line]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=timeout)


def metrics(run: Path) -> list[dict[str, Any]]:
    return Metrics.read(run / "metrics.jsonl")


def rollouts(run: Path) -> dict[int, list[Trajectory]]:
    """Attempts by step."""
    return {int(file.stem.removeprefix("step_")): load(file) for file in sorted((run / "rollouts").iterdir())}


def token_values(run: Path) -> dict[int, list[TokenValues]]:
    """What the learner computed for the attempts of each step."""
    files = sorted((run / "rollouts").iterdir())
    return {int(file.stem.removeprefix("step_")): load_token_values(file) for file in files}


def as_lists(values: TokenValues) -> tuple[list[float] | None, ...]:
    """To be compared, bit by bit."""
    every = (values.advantages, values.log_probs, values.entropies)
    return tuple(None if one is None else one.tolist() for one in every)
