"""GiGPO beside GRPO on a grid world with a key and a door: the same warm start, the same number of attempts.

    python benchmarks/gigpo.py [--seeds 3] [--steps 30] [--workers 2]

A long walk with one reward at its end. Each seed has a level of its own, which the policy sees a place at a
time (row, column, keys held) and has to learn by heart; the shortest way takes 8 to 11 moves, an attempt
has 32. The warm start has learned from demonstrations in which nine moves of ten are random: it speaks the
language and wanders.

Equal for both: model, warm start, levels, seeds, attempts a step (2 groups of 16), one update a step,
token-mean, no reference, optimiser, and normalisation by the standard deviation, which is GRPO's own and
GiGPO's `mean_std_norm`. GRPO's learning rate was tuned and GiGPO's with the same care, over {TUNED}; the
best of each is used. GiGPO's step weight is the paper's 1, its discount the paper's 0.95; neither was
tuned.

What is compared is success, the share of sampled attempts that reach the goal: over the last fifth of the
steps, and over all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

RATES = {"grpo": "2e-3", "gigpo": "2e-3"}
TASK = (
    "task=gridworld",
    "task.params.view=place",
    "task.params.width=8",
    "task.params.height=4",
    "task.params.doors=2",
    "task.params.min_steps=13",
    "task.params.max_steps=16",
    "task.train_size=1",
    "task.held_out_size=1",
)
MODEL = (
    "model.layers=1",
    "model.width=48",
    "model.heads=2",
    "model.kv_heads=2",
    "model.ffn=128",
    "model.context=640",
    "run.threads=1",
)
EQUAL = (
    "rollout.prompts=2",
    "rollout.samples=12",
    "rollout.max_turns=60",
    "rollout.max_tokens=2",
    "algorithm.aggregate=token-mean",
    "algorithm.kl.where=none",
)
OWN = {"grpo": (), "gigpo": ("algorithm.params.gigpo.mode=mean_std_norm",)}
DEMONSTRATIONS, TURNS_SHOWN, NOISE = 256, 40, 0.8


def warm_start(folder: Path, seed: int, *, steps: int) -> Path:
    """The policy both begin with, from noisy demonstrations of the level."""
    from toolwright.cli import main
    from toolwright.config.compose import Source, resolve
    from toolwright.tasks import load

    words = [*TASK, f"run.seed={seed}", f"task.params.noise={NOISE}"]
    config = resolve(Source(), words).config
    tasks = load(config.task, seed=seed)
    assert tasks.demonstrate is not None
    (level,) = tasks.train
    rng = random.Random(seed)
    shown = [
        [*level.prompt, *tasks.demonstrate(level, rng)[: 2 * TURNS_SHOWN]] for _ in range(DEMONSTRATIONS)
    ]
    file = folder / "demonstrations.jsonl"
    file.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in shown))
    own = [f"demonstrations={file}", f"steps={steps}", "batch=16", "optimizer.lr=1e-2", f"run.dir={folder}"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if main(["sft", *words, *MODEL, *own, "run.name=warm"]) != 0:
            raise SystemExit("the warm start failed")
    return folder / "warm/model"


def successes(algorithm: str, model: Path, seed: int, *, steps: int, rate: str) -> list[float]:
    """The share of a step's attempts that reached the goal, step by step."""
    from toolwright.config.compose import Source, resolve
    from toolwright.trainer.loop import Trainer

    own = [f"model.path={model}", f"run.seed={seed}", f"update.policy.lr={rate}", f"train.steps={steps}"]
    config = resolve(
        Source(), [f"algorithm={algorithm}", *TASK, *MODEL, *EQUAL, *OWN[algorithm], *own]
    ).config
    trainer = Trainer(config)
    found = []
    try:
        for step in range(1, steps + 1):
            sampled = trainer.sample(step)
            found.append(statistics.fmean(t.counts["success"] for t in sampled.trajectories))
            trainer.learn(sampled, step)
    finally:
        trainer.close()
    return found


def one_seed(seed: int, *, steps: int, warm_steps: int, rates: dict[str, str]) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        model = warm_start(Path(folder), seed, steps=warm_steps)
        return {name: successes(name, model, seed, steps=steps, rate=rate) for name, rate in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-steps", type=int, default=250)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--grpo-lr", default=RATES["grpo"])
    parser.add_argument("--gigpo-lr", default=RATES["gigpo"])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rates = {"grpo": asked.grpo_lr, "gigpo": asked.gigpo_lr}
    started = time.perf_counter()
    with ProcessPoolExecutor(asked.workers) as pool:
        running = [
            pool.submit(one_seed, seed, steps=asked.steps, warm_steps=asked.warm_steps, rates=rates)
            for seed in range(asked.first_seed, asked.first_seed + asked.seeds)
        ]
        curves = [future.result() for future in running]
    show(curves, last=max(1, asked.steps // 5))
    print(f"{asked.seeds} seeds of {asked.steps} steps in {time.perf_counter() - started:.0f} s")
    if asked.json:
        asked.json.write_text(json.dumps(curves))


def show(curves: list[dict[str, list[float]]], *, last: int) -> None:
    print(f"{'':12}{'at first':>9}{'last fifth of the steps':>26}{'all steps':>21}")
    print(f"{'seed':12}{'both':>9}{'grpo':>13}{'gigpo':>13}{'grpo':>11}{'gigpo':>10}")
    rows = []
    for curve in curves:
        grpo, gigpo = curve["grpo"], curve["gigpo"]
        parts = (grpo[:1], grpo[-last:], gigpo[-last:], grpo, gigpo)
        rows.append([100 * statistics.fmean(part) for part in parts])
    for seed, row in enumerate(rows):
        print(
            f"{seed:<12}"
            + "".join(f"{value:{width}.1f}" for value, width in zip(row, (9, 13, 13, 11, 10), strict=True))
        )
    columns = list(zip(*rows, strict=True))
    print(
        f"{'mean':12}"
        + "".join(f"{statistics.fmean(c):{w}.1f}" for c, w in zip(columns, (9, 13, 13, 11, 10), strict=True))
    )
    if len(rows) > 1:
        print(
            f"{'spread (sd)':12}"
            + "".join(
                f"{statistics.stdev(c):{w}.1f}" for c, w in zip(columns, (9, 13, 13, 11, 10), strict=True)
            )
        )
    ahead = [row[2] - row[1] for row in rows]
    wins = sum(value > 0 for value in ahead)
    print(
        f"GiGPO ahead by {statistics.fmean(ahead):.1f} points in the last fifth, "
        f"on {wins} of {len(rows)} seeds"
    )


if __name__ == "__main__":
    main()
