"""Rewards on the steps that earned them, beside their sum at the end: the same runs otherwise.

    python benchmarks/step_rewards.py [--tasks rooms errand gridworld] [--seeds 5] [--workers 1] [--json FILE]

PPO, REINFORCE++ and GiGPO as their presets have them, discounted by turn, on three tasks that pay on the way:
`rooms` and `errand` of `step_reward_tasks.py` from random weights, and the grid world of its preset, whose
key pays a quarter, from a warm start. `step_rewards=false` puts the sum on the last token. All else is equal:
model, levels, random numbers, attempts a step, learning rate.

Compared is the reward of attempts at held-out tasks, sampled at temperature 1, after the same number of
steps: the mean over the seeds with its 95 % interval by Student's t, and the same of the difference, seed by
seed.

No setting was chosen by comparing the two arms. `rooms` and `errand` have the rates of
tests/trainer/test_presets_learn.py, 1e-2 / √updates, and numbers of steps from runs with seeds 0 to 4. The
grid world has its preset's levels and turns, the key reward of examples/08_ppo_on_ray.py, the policy's rate
of benchmarks/gigpo.py, 1e-3 / √updates, and a run's own rates for the critic and the warm start. One warm
start, made with seed 900, is what all its seeds begin with. Its share of random moves was chosen by its
reward before any training (0.84 with 0.3, 0.53 with 0.8), and the number of steps by one run of REINFORCE++
with the sum at the end, seed 900, which learned within ten.
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
PLACES = {"step": "true", "sum": "false"}
EQUAL = (
    *("run.threads=1", "algorithm.discount_per=turn"),
    *("eval.every=0", "eval.temperature=1", "rollout.max_tokens=1", "rollout.samples=4"),
)
SMALL = (
    *("model.layers=1", "model.width=32", "model.heads=2", "model.kv_heads=2", "model.ffn=64"),
    *("model.context=40", "update.critic.lr=1e-2", "rollout.max_turns=8", "eval.samples=8"),
)
LARGER = ("model.layers=2", "model.width=64", "model.heads=4", "model.kv_heads=4", "model.ffn=128")
GRID = ("task=gridworld", "task.params.key_reward=0.25", "task.held_out_size=32")
OF_TASK: dict[str, tuple[str, ...]] = {
    "rooms": (
        *(*SMALL, f"task.name={FILE}:rooms", f"rollout.agent={FILE}:Walker", "task.held_out_size=16"),
        *("rollout.prompts=4", "train.steps=8"),
    ),
    "errand": (
        *(*SMALL, f"task.name={FILE}:errand", f"rollout.agent={FILE}:Errand", "task.held_out_size=8"),
        *("reward.parts={task: 1.0, step_rewards: 1.0}", "rollout.prompts=8", "train.steps=24"),
    ),
    "gridworld": (*GRID, *LARGER, "eval.samples=4", "rollout.prompts=8", "train.steps=10"),
}
# By turn. A run in the grid world takes ten times as long as one of the others.
GAMMAS = {"rooms": (1.0, 0.9), "errand": (1.0, 0.9), "gridworld": (0.9,)}
RATES = {"rooms": 1e-2, "errand": 1e-2, "gridworld": 1e-3}  # of one update a step
FIRST_SEED, WARM_SEED = 100, 900
NOISE, WARM_STEPS = 0.8, 200
# Student's t for 95 %, by degrees of freedom from 1; beyond them the last is wide enough.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)

Arm = tuple[str, float, str]  # algorithm, γ, where rewards lie
Scores = dict[str, list[float]]  # by arm, one a seed; before: of the policy that all begin with


def configured(*words: str) -> Config:
    config = resolve(Source(), words).config
    assert isinstance(config, Config)
    return config


def warm_start(folder: Path) -> None:
    """The policy that walks of mostly random moves have taught to write a move: `folder`/warm/model."""
    from toolwright.cli import main

    own = [f"task.params.noise={NOISE}", f"steps={WARM_STEPS}", "batch=16", "run.threads=1"]
    words = [*GRID, *LARGER, *own, f"run.seed={WARM_SEED}", f"run.dir={folder}", "run.name=warm"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if main(["sft", *words]) != 0:
            raise SystemExit("the warm start failed")


def trained(task: str, arm: Arm, seed: int, folder: Path, *own: str) -> list[float]:
    """The reward of held-out tasks, at each evaluation."""
    from toolwright.observe.metrics import Metrics
    from toolwright.trainer.loop import train

    algorithm, gamma, place = arm
    preset = configured(f"algorithm={algorithm}").update
    rate = RATES[task] / math.sqrt(preset.epochs * preset.minibatches)
    words = [
        *(f"algorithm={algorithm}", f"algorithm.gamma={gamma}", f"algorithm.step_rewards={PLACES[place]}"),
        *(f"update.policy.lr={rate:.1e}", f"run.seed={seed}", f"run.dir={folder}"),
        f"run.name={task}-{algorithm}-{gamma}-{place}",
    ]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run = train(configured(*EQUAL, *OF_TASK[task], *words, *own), command=["benchmark"])
    rows = Metrics.read(run / "metrics.jsonl")
    return [row["held_out/reward"] for row in rows if "held_out/reward" in row]


def one_seed(task: str, seed: int, arms: Sequence[Arm], warm: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    start = [f"model.path={warm}/warm/model"] if task == "gridworld" else []
    with tempfile.TemporaryDirectory() as folder:
        for arm in arms:
            known = "before" in found  # it is the same for all arms
            rewards = trained(
                task, arm, seed, Path(folder), *start, f"eval.at_start={str(not known).lower()}"
            )
            found.setdefault("before", rewards[0])
            found[label(arm)] = rewards[-1]
    return found


def label(arm: Arm) -> str:
    return " ".join(map(str, arm))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(OF_TASK), choices=OF_TASK)
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path, help="add the scores to this file, and show all that it holds")
    parser.add_argument("--warm", type=Path, help="a folder to keep the grid world's warm start in")
    asked = parser.parse_args()
    started = time.perf_counter()
    earlier: dict[str, Scores] = (
        json.loads(asked.json.read_text()) if asked.json and asked.json.exists() else {}
    )
    scores = dict(earlier)
    with tempfile.TemporaryDirectory() as temporary, ProcessPoolExecutor(asked.workers) as pool:
        warm = asked.warm.resolve() if asked.warm else Path(temporary)
        if "gridworld" in asked.tasks and not (warm / "warm" / "model").exists():
            warm_start(warm)
        for task in asked.tasks:
            arms = [
                (name, gamma, place)
                for name in asked.algorithms
                for gamma in GAMMAS[task]
                for place in PLACES
            ]
            seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
            running = [pool.submit(one_seed, task, seed, arms, warm) for seed in seeds]
            fresh: Scores = {}
            for future in running:  # what is done is kept, however long the rest takes
                for arm, reward in future.result().items():
                    fresh.setdefault(arm, []).append(reward)
                scores[task] = {
                    arm: [*earlier.get(task, {}).get(arm, []), *fresh.get(arm, [])]
                    for arm in {**earlier.get(task, {}), **fresh}
                }
                if asked.json:
                    asked.json.write_text(json.dumps(scores, indent=1) + "\n")
    show(scores)
    print(f"\n{asked.seeds} seeds in {time.perf_counter() - started:.0f} s")


def show(scores: dict[str, Scores]) -> None:
    print("| task | algorithm | γ | sum at the end | on their steps | difference |")
    print("| --- | --- | --- | --- | --- | --- |")
    for task, of_task in scores.items():
        for algorithm in ALGORITHMS:
            for gamma in GAMMAS[task]:
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
