"""Rewards on the steps that earned them, beside their sum at the end: the same runs otherwise.

    python benchmarks/step_rewards.py [--tasks rooms errand gridworld] [--seeds 5] [--workers 1] [--json FILE]

PPO, REINFORCE++ and GiGPO as their presets have them, with γ = 1 and γ = 0.9 by turn, on three tasks that pay
on the way: `rooms` and `errand` of `step_reward_tasks.py` from random weights, and a grid world whose key
pays a quarter, from a warm start by demonstrations most of whose moves are any move. `step_rewards=false`
puts the sum on the last token. All else is equal: model, levels, random numbers, attempts a step, learning
rate.

Compared is the reward of attempts at held-out tasks, sampled at temperature 1, after the same number of
steps: the mean over the seeds with its 95 % interval by Student's t, and the same of the difference, seed by
seed. In the grid world each seed has one level, to be learned by heart, and the attempts are those at it that
the last five steps sampled.

Learning rates are those of tests/trainer/test_presets_learn.py, 1e-2 / √updates, and half of that where
there is a warm start to forget. They are the same for both arms. Attempts and steps were chosen by first runs
so that neither arm knows everything at the end. The grid world was another at first, of 32 levels shown as
maps and 8 held out: sixty steps of PPO with one seed taught neither arm anything of those. Next, with PPO and
one seed each, 5 × 3 was known after five steps and 8 × 3 with two doors not begun after twenty. The present
one was then tried with PPO on seeds 0 and 1, which are among those compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from toolwright.config.compose import Source, resolve
from toolwright.config.schema import Config

FILE = Path(__file__).resolve().with_name("step_reward_tasks.py")
ALGORITHMS = ("ppo", "reinforce_plus_plus", "gigpo")
GAMMAS = (1.0, 0.9)
PLACES = {"step": "true", "sum": "false"}
EQUAL = (
    *("model.layers=1", "model.width=32", "model.heads=2", "model.kv_heads=2", "model.ffn=64"),
    *("run.threads=1", "algorithm.discount_per=turn", "update.critic.lr=1e-2"),
    *("eval.every=0", "eval.temperature=1", "eval.samples=8"),
)
GRID = (
    *("task=gridworld", "task.params.view=place", "task.params.width=7", "task.params.height=3"),
    *("task.params.min_steps=8", "task.params.max_steps=12", "task.params.key_reward=0.25"),
    *("task.train_size=1", "task.held_out_size=1", "model.context=512"),
)
OF_TASK: dict[str, tuple[str, ...]] = {
    "rooms": (
        *(f"task.name={FILE}:rooms", f"rollout.agent={FILE}:Walker", "task.held_out_size=16"),
        *("rollout.max_turns=8", "rollout.max_tokens=1", "rollout.prompts=4", "model.context=40"),
        *("rollout.samples=4", "train.steps=8"),
    ),
    "errand": (
        *(f"task.name={FILE}:errand", f"rollout.agent={FILE}:Errand", "train.steps=24"),
        *("reward.parts={task: 1.0, step_rewards: 1.0}", "task.held_out_size=8", "rollout.max_tokens=1"),
        *("rollout.max_turns=8", "rollout.prompts=8", "rollout.samples=4", "model.context=40"),
    ),
    "gridworld": (
        *(*GRID, "rollout.max_turns=20", "rollout.max_tokens=1", "rollout.prompts=1", "rollout.samples=16"),
        "train.steps=30",
    ),
}
NOISE, WARM_STEPS = 0.8, 80
LAST = 5  # steps whose attempts are compared where nothing is held out
# Student's t for 95 %, by degrees of freedom from 1; beyond them the last is wide enough.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)

Arm = tuple[str, float, str]  # algorithm, γ, where rewards lie
Scores = dict[str, list[float]]  # by arm, one a seed; before: of the policy that all begin with


def configured(*words: str) -> Config:
    config = resolve(Source(), words).config
    assert isinstance(config, Config)
    return config


def warm_start(folder: Path, seed: int) -> list[str]:
    """Words for the policy that walks of mostly random moves have taught to write a move."""
    from toolwright.cli import main

    own = [f"task.params.noise={NOISE}", f"steps={WARM_STEPS}", "batch=16", "optimizer.lr=1e-2"]
    model = [word for word in EQUAL if word.startswith(("model.", "run."))]
    words = [*GRID, *model, *own, f"run.seed={seed}", f"run.dir={folder}", "run.name=warm"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if main(["sft", *words]) != 0:
            raise SystemExit("the warm start failed")
    return [f"model.path={folder}/warm/model"]


def trained(task: str, arm: Arm, seed: int, folder: Path, start: Sequence[str]) -> tuple[float, float]:
    """The reward before and after: of held-out tasks, or of the level that is learned by heart."""
    from toolwright.observe.metrics import Metrics
    from toolwright.trainer.loop import train

    algorithm, gamma, place = arm
    preset = configured(f"algorithm={algorithm}").update
    rate = 1e-2 / math.sqrt(preset.epochs * preset.minibatches)
    rate = rate / 2 if task == "gridworld" else rate  # it has something to forget
    own = [
        *(f"algorithm={algorithm}", f"algorithm.gamma={gamma}", f"algorithm.step_rewards={PLACES[place]}"),
        *(f"update.policy.lr={rate:.1e}", f"run.seed={seed}", f"run.dir={folder}"),
        *(f"run.name={task}-{algorithm}-{gamma}-{place}", *start),
    ]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run = train(configured(*EQUAL, *OF_TASK[task], *own), command=["benchmark"])
    by_heart = task == "gridworld"
    key = "reward/mean" if by_heart else "held_out/reward"
    found = [row[key] for row in Metrics.read(run / "metrics.jsonl") if key in row]
    return found[0], statistics.fmean(found[-LAST:]) if by_heart else found[-1]


def one_seed(task: str, seed: int, arms: Sequence[Arm]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = warm_start(folder, seed) if task == "gridworld" else []
        found = {}
        for arm in arms:
            found["before"], found[label(arm)] = trained(task, arm, seed, folder, start)
        return found


def label(arm: Arm) -> str:
    return " ".join(map(str, arm))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(OF_TASK), choices=OF_TASK)
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path, help="add the scores to this file, and show all that it holds")
    asked = parser.parse_args()
    started = time.perf_counter()
    arms = [(name, gamma, place) for name in asked.algorithms for gamma in GAMMAS for place in PLACES]
    scores: dict[str, Scores] = (
        json.loads(asked.json.read_text()) if asked.json and asked.json.exists() else {}
    )
    with ProcessPoolExecutor(asked.workers) as pool:
        for task in asked.tasks:
            running = [pool.submit(one_seed, task, seed, arms) for seed in range(asked.seeds)]
            found = [future.result() for future in running]
            scores[task] = scores.get(task, {}) | {arm: [one[arm] for one in found] for arm in found[0]}
            if asked.json:
                asked.json.write_text(json.dumps(scores, indent=1) + "\n")
    show(scores)
    print(f"\n{asked.seeds} seeds in {time.perf_counter() - started:.0f} s")


def show(scores: dict[str, Scores]) -> None:
    print("| task | algorithm | γ | sum at the end | on their steps | difference |")
    print("| --- | --- | --- | --- | --- | --- |")
    for task, of_task in scores.items():
        for algorithm in ALGORITHMS:
            for gamma in GAMMAS:
                both = [of_task.get(label((algorithm, gamma, place))) for place in ("sum", "step")]
                if both[0] is None or both[1] is None:
                    continue
                ahead = [step - end for end, step in zip(*both, strict=True)]
                cells = [interval(both[0]), interval(both[1]), interval(ahead, sign="+")]
                print(f"| {task} | `{algorithm}` | {gamma:g} | {' | '.join(cells)} |")
        print(f"| {task} | before | | {interval(of_task['before'])} | | |")


def interval(values: Sequence[float], sign: str = "") -> str:
    """The mean, and how far to either side it may lie with 95 %."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:{sign}.2f}"
    around = STUDENT[min(len(values) - 1, len(STUDENT)) - 1] * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:{sign}.2f} ± {around:.2f}"


if __name__ == "__main__":
    main()
