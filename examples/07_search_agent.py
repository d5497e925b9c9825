"""A search agent: it asks an index before it answers, as Search-R1 does.

    python examples/07_search_agent.py [STEPS] [WARM_STEPS]

The index is BM25 over passages of your own (`pip install 'toolwright[search]'`). The heights of these towers
stand nowhere else, so only a search for the right tower helps. Most demonstrations look for another one.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import toolwright as tw

HEIGHTS = {"Alba": 31, "Brok": 74, "Ceva": 25, "Dorn": 98, "Elva": 52}
CORPUS = Path("towers.jsonl")


def write_corpus() -> None:
    passages = [
        {"id": str(number), "title": name, "text": f"{name} is {height} m."}
        for number, (name, height) in enumerate(HEIGHTS.items())
    ]
    CORPUS.write_text("".join(json.dumps(passage) + "\n" for passage in passages))


def demonstrate(task: tw.Task, rng: random.Random) -> list[dict[str, str]]:
    name = task.extra_info["name"] if rng.random() < 0.3 else rng.choice(list(HEIGHTS))
    found = f"Doc 1(Title: {name}) {name} is {HEIGHTS[name]} m."
    return [
        {"role": "assistant", "content": f"<search>{name}</search>"},
        {"role": "tool", "content": found},
        {"role": "assistant", "content": f"<answer>{HEIGHTS[name]}</answer>"},
    ]


def tasks(*, seed: int = 0) -> tw.TaskSet:
    rng = random.Random(seed)

    def ask(number: int) -> tw.Task:
        name, form = rng.choice(list(HEIGHTS)), rng.choice(["How high is {}?", "{} is how high?"])
        prompt = [{"role": "user", "content": form.format(name)}]
        return tw.Task(f"{number}", prompt, ground_truth=str(HEIGHTS[name]), extra_info={"name": name})

    return tw.TaskSet(
        train=[ask(number) for number in range(400)],
        held_out=[ask(number) for number in range(400, 432)],
        scorer="em",
        alphabet="".join(map(chr, range(10, 127))),
        demonstrate=demonstrate,
    )


def main(steps: int = 40, warm_steps: int = 150) -> None:
    write_corpus()
    agent = (
        *(f"tools.search.corpus={CORPUS}", "tools.search.topk=1", "rollout.tool_prompt=''"),
        *("rollout.max_turns=2", "rollout.max_tokens=28", "rollout.tool_tokens=64", "model.context=192"),
    )
    warm = tw.sft(*agent, f"steps={warm_steps}", "optimizer.lr=3e-3", task=tasks)
    words = ("algorithm=dr_grpo", f"train.steps={steps}", "update.policy.lr=5e-4", "eval.every=20")
    for step in tw.Trainer(*agent, *words, task=tasks, model=warm):
        if step.number == 1 or step.number % 10 == 0:
            calls = step.metrics.get("attempts/tool_calls", 0.0)
            print(step.number, f"reward {step.metrics['reward/mean']:.2f}", f"searches {calls:.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
