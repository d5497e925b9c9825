"""An agent that knows nothing of Toolwright: served a model, recorded, and its successes learned from.

    python examples/06_unmodified_agent.py [ROUNDS] [WARM_STEPS] [CONVERSATIONS]

`shop_agent` is written with OpenAI's SDK, as agents in the wild are. `toolwright serve` answers it.
Conversations that end with the right price are the demonstrations of the next round: sample, keep, imitate.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openai import OpenAI

import toolwright as tw

sys.path.insert(0, str(Path(__file__).parent))
shop = importlib.import_module("04_own_tool")  # its prices, tasks and tool

SCHEMA = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "Look up the price of an item.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string", "description": "The name of the item."}},
            "required": ["item"],
        },
    },
}


def shop_agent(client: OpenAI, question: str) -> list[dict[str, object]]:
    """Ask, call what the model wants called, ask again. Returns the conversation after the question."""
    messages: list[dict[str, object]] = [{"role": "user", "content": question}]
    for _ in range(2):
        reply = client.chat.completions.create(
            model="model", messages=messages, tools=[SCHEMA], max_tokens=24
        )
        said = reply.choices[0].message
        messages.append(said.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        for call in said.tool_calls or []:
            try:
                answer = shop.price(**json.loads(call.function.arguments))
            except (TypeError, ValueError) as error:
                answer = str(error)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})
        if not said.tool_calls:
            break
    return messages[1:]


@contextlib.contextmanager
def served(model: Path) -> Iterator[OpenAI]:
    """The model behind OpenAI's protocol, on a free port."""
    line = [sys.executable, "-m", "toolwright", "serve", str(model), "--port", "0", "--call-format", "tags"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = re.search(r"http://\S+", server.stdout.readline())
            yield OpenAI(base_url=f"{address[0]}/v1", api_key="none", timeout=300)
        finally:
            server.terminate()


def main(rounds: int = 3, warm_steps: int = 200, conversations: int = 160) -> None:
    known, rng = shop.tasks(), random.Random(0)
    agent = ("rollout.max_turns=2", "rollout.max_tokens=24", "model.context=384")
    model = tw.sft(*agent, f"steps={warm_steps}", "optimizer.lr=3e-3", task=shop.tasks, tools=[shop.price])
    for round in range(1, rounds + 1):
        asked = rng.choices(known.train, k=conversations)
        with served(model) as client, ThreadPoolExecutor(8) as pool:
            said = list(pool.map(lambda task: shop_agent(client, task.prompt[-1]["content"]), asked))
        right = [talk[-1].get("content") == task.ground_truth for talk, task in zip(said, asked, strict=True)]
        print(f"round {round}: {sum(right) / len(right):.0%} of {len(right)} conversations end right")
        if not any(right):
            sys.exit("there is nothing to learn from yet: give it more WARM_STEPS")
        kept = {
            f"{round}-{number}": (tw.Task(f"{round}-{number}", task.prompt), talk)
            for number, (task, talk, good) in enumerate(zip(asked, said, right, strict=True))
            if good
        }
        lessons = tw.TaskSet(
            train=[task for task, _ in kept.values()],
            held_out=known.held_out,
            scorer="exact",
            demonstrate=lambda task, rng, kept=kept: kept[task.id][1],
        )
        model = tw.sft(*agent, f"steps={warm_steps // 3}", model=model, task=lessons, tools=[shop.price])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
