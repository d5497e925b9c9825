"""Your own tool: a typed function with a docstring, which a policy learns to call.

    python examples/04_own_tool.py [STEPS] [WARM_STEPS]

The model cannot know the prices; `price` does. Of the demonstrations most ask for the wrong item.
"""

from __future__ import annotations

import random
import sys

import toolwright as tw

PRICES = {"pen": 31, "cup": 74, "hat": 25, "key": 98, "mat": 52}


def price(item: str) -> str:
    """Look up the price of an item.

    Args:
        item: The name of the item.
    """
    if item not in PRICES:
        raise ValueError(f"there is no {item}; there are {', '.join(PRICES)}")
    return str(PRICES[item])


def demonstrate(task: tw.Task, rng: random.Random) -> list[dict[str, str]]:
    item = task.extra_info["item"] if rng.random() < 0.3 else rng.choice(list(PRICES))
    return [
        {"role": "assistant", "content": f"<price>{item}</price>"},
        {"role": "tool", "content": str(PRICES[item])},
        {"role": "assistant", "content": str(PRICES[item])},
    ]


def tasks(*, seed: int = 0) -> tw.TaskSet:
    rng = random.Random(seed)

    def ask(number: int) -> tw.Task:
        item, form = rng.choice(list(PRICES)), rng.choice(["A {} is how much?", "Price of a {}?"])
        prompt = [{"role": "user", "content": form.format(item)}]
        return tw.Task(f"{number}", prompt, ground_truth=str(PRICES[item]), extra_info={"item": item})

    return tw.TaskSet(
        train=[ask(number) for number in range(400)],
        held_out=[ask(number) for number in range(400, 432)],
        scorer="exact",
        alphabet="".join(map(chr, range(32, 127))),
        demonstrate=demonstrate,
    )


def main(steps: int = 40, warm_steps: int = 150) -> None:
    agent = ("rollout.max_turns=2", "rollout.max_tokens=24", "rollout.tool_prompt=''")
    own = {"task": tasks, "tools": [price]}
    warm = tw.sft(*agent, f"steps={warm_steps}", "optimizer.lr=3e-3", **own)
    words = ("algorithm=dr_grpo", f"train.steps={steps}", "update.policy.lr=5e-4", "eval.every=20")
    for step in tw.Trainer(*agent, *words, model=warm, **own):
        if step.number == 1 or step.number % 10 == 0:
            print(step.number, f"reward {step.metrics['reward/mean']:.2f}", step.attempts[0].response)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
