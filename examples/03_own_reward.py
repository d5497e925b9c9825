"""Your own reward: a function that scores an attempt, with partial credit.

    python examples/03_own_reward.py [STEPS] [WARM_STEPS]

After a short look at demonstrations a tiny model learns to write words backwards. Half a word right earns
half a point, so that it is told more than right or wrong.
"""

from __future__ import annotations

import sys

import toolwright as tw


def letters(solution_str: str, ground_truth: str) -> dict[str, float]:
    """Half a point for letters in their places, half for the right length; `acc` says whether it is right."""
    same = sum(a == b for a, b in zip(solution_str, ground_truth, strict=False)) / len(ground_truth)
    length = float(len(solution_str) == len(ground_truth))
    return {"score": (same + length) / 2, "acc": float(solution_str == ground_truth), "letters": same}


def main(steps: int = 100, warm_steps: int = 40) -> None:
    task = ("task=reverse", "task.params.max_length=4")
    warm = tw.sft(*task, f"steps={warm_steps}")
    words = ("algorithm=dr_grpo", f"train.steps={steps}", "update.policy.lr=5e-4")
    trainer = tw.Trainer(*task, *words, model=warm, reward=letters)
    for step in trainer:
        if step.number == 1 or step.number % 25 == 0:
            shown = {name: round(step.metrics[f"reward/{name}"], 2) for name in ("mean", "letters", "acc")}
            print(step.number, shown, step.attempts[0].response)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
