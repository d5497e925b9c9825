"""Environments of verifiers, one of each kind, as their users write them."""

from __future__ import annotations

from itertools import product
from typing import Any

import verifiers as vf
from datasets import Dataset


def rows(count: int = 6) -> Dataset:
    return Dataset.from_list(
        [{"question": f"What is {n} + {n}?", "answer": str(2 * n), "info": {"n": n}} for n in range(count)]
    )


async def right(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"].strip() == answer)


def within(parser: Any, completion: Any, answer: str) -> float:
    return float(parser.parse_answer(completion) == answer)


def looked_up(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"] == words_backward()[int(answer)]["answer"])


def brief(completion: Any, info: dict[str, Any]) -> float:
    return float(len(completion[-1]["content"]) < 4)


def broken(completion: Any) -> float:
    return float(completion[99]["content"])


def double(number: int) -> str:
    """Twice a number.

    Args:
        number: what is doubled
    """
    return str(2 * number)


class Guessing(vf.MultiTurnEnv):
    async def setup_state(self, state: Any) -> Any:
        state["tries"] = 0
        return state

    @vf.stop
    async def guessed(self, state: Any) -> bool:
        return (
            bool(state["trajectory"]) and state["trajectory"][-1]["completion"][-1].content == state["answer"]
        )

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        state["tries"] += 1
        return [{"role": "user", "content": f"No. That was try {state['tries']}."}]


class Rewriting(Guessing):
    async def get_prompt_messages(self, state: Any) -> Any:
        said = await super().get_prompt_messages(state)
        return said if len(said) < 3 else said[-1:]


class Counting(vf.StatefulToolEnv):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_tool(self.count, args_to_skip=["state"])

    async def count(self, by: int, state: Any) -> str:
        """Count on.

        Args:
            by: how far
        """
        state["total"] = state.get("total", 0) + by
        return f"now {state['total']}"

    def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **_: Any) -> Any:
        return {**tool_args, "state": state}


async def counted(state: Any, answer: str) -> float:
    return float(state.get("total") == int(answer))


def words_backward() -> Dataset:
    words = ["".join(letters) for letters in product("abcdefgh", repeat=3)]
    return Dataset.from_list([{"question": word, "answer": word[::-1]} for word in words])


def load_environment(kind: str = "single", held_out: bool = False, limit: int = 4) -> vf.Environment:
    rubric = vf.Rubric(funcs=[right, brief], weights=[1.0, 0.25])
    settings: dict[str, Any] = {"dataset": rows(), "system_prompt": "Be brief.", "rubric": rubric}
    if held_out:
        settings["eval_dataset"] = rows(2)
    if kind == "backward":
        return vf.SingleTurnEnv(dataset=words_backward(), rubric=vf.Rubric(funcs=[right]))
    if kind == "single":
        return vf.SingleTurnEnv(**settings)
    if kind == "broken":
        return vf.SingleTurnEnv(**{**settings, "rubric": vf.Rubric(funcs=[right, broken])})
    if kind == "tagged":  # paid within tags alone
        parser = vf.XMLParser(["backward"], answer_field="backward")
        return vf.SingleTurnEnv(
            dataset=words_backward(), rubric=vf.Rubric(funcs=[within], parser=parser), parser=parser
        )
    if kind == "numbered":  # its answers are the numbers of puzzles, which it looks up
        words = words_backward().map(lambda row, number: {"answer": str(number)}, with_indices=True)
        return vf.SingleTurnEnv(dataset=words, rubric=vf.Rubric(funcs=[looked_up]))
    if kind == "tools":
        return vf.ToolEnv(tools=[double], max_turns=limit, **settings)
    if kind == "stateful":
        return Counting(max_turns=limit, **{**settings, "rubric": vf.Rubric(funcs=[counted])})
    if kind == "group":
        return vf.SingleTurnEnv(**{**settings, "rubric": vf.Rubric(funcs=[by_group])})
    return {"guessing": Guessing, "rewriting": Rewriting}[kind](max_turns=limit, **settings)


def by_group(completions: Any) -> list[float]:
    return [0.0 for _ in completions]
