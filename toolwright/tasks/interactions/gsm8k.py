"""A user by rule: says whether the number after `####` is right, and asks for another try where it is not."""

from __future__ import annotations

import re
from typing import Any

from toolwright.tasks.interaction import INTERACTIONS

RIGHT = "Your response is correct!"
WRONG = "Your response is incorrect! You need to reflect on your answer and try again."
ANSWER = re.compile(r"####\s*(-?[0-9.,]+)")


@INTERACTIONS.register("gsm8k")
class Gsm8kUser:
    def __init__(self, config: dict[str, Any]) -> None:
        self._truth: dict[str, str] = {}

    async def start_interaction(self, instance_id: str, *, ground_truth: Any = None, **kwargs: Any) -> str:
        self._truth[instance_id] = str(ground_truth)
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        said = next((m["content"] for m in reversed(messages) if m["role"] == "assistant"), "")
        found = ANSWER.findall(str(said))
        right = bool(found) and found[-1].replace(",", "").rstrip(".") == self._truth[instance_id]
        return right, RIGHT if right else WRONG, float(right), {}

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        self._truth.pop(instance_id, None)
