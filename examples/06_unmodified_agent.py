"""An agent that knows nothing of Toolwright, trained as it is.

    python examples/06_unmodified_agent.py [STEPS] [WARM_STEPS]

`shop_agent` is written with OpenAI's SDK, as agents in the wild are. While the run samples, its policy
answers the SDK. Each attempt has an address and a key of its own. What was sampled is what is learned from.
"""

from __future__ import annotations

import importlib
import json
import sys
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


def shop_agent(task: dict[str, str]) -> str:
    """Ask, call what the model wants called, ask again. What it returns is scored."""
    client = OpenAI()  # the run has set OPENAI_BASE_URL and OPENAI_API_KEY
    messages: list[dict[str, object]] = [{"role": "user", "content": task["question"]}]
    for _ in range(2):
        reply = client.chat.completions.create(model="any", messages=messages, tools=[SCHEMA])
        said = reply.choices[0].message
        if not said.tool_calls:
            break
        messages.append(said.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        for call in said.tool_calls:
            try:
                answer = shop.price(**json.loads(call.function.arguments))
            except (TypeError, ValueError) as error:
                answer = str(error)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})
    return said.content or "nothing"


def main(steps: int = 30, warm_steps: int = 150) -> None:
    agent = ("rollout.max_turns=2", "rollout.max_tokens=24", "rollout.tool_prompt=''")
    warm = tw.sft(*agent, f"steps={warm_steps}", "optimizer.lr=3e-3", task=shop.tasks, tools=[shop.price])
    words = ("algorithm=dr_grpo", f"train.steps={steps}", "update.policy.lr=5e-4", "eval.every=10")
    own = (f"rollout.agent={Path(__file__).resolve()}:shop_agent", "rollout.call_format=tags")
    for step in tw.Trainer(*agent, *words, *own, model=warm, task=shop.tasks):
        if step.number == 1 or step.number % 10 == 0:
            print(step.number, f"reward {step.metrics['reward/mean']:.2f}", step.attempts[0].response)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
