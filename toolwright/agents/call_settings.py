"""Settings of `rollout.call_params` for the loop that runs calls. The others belong to the call format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from toolwright.agents.near_misses import NearMissMode, checked_mode
from toolwright.failures import UserError


@dataclass(frozen=True)
class CallSettings:
    """Settings of the loop that are the same for every call format."""

    near_misses: NearMissMode = "explain"
    result_characters: int | None = None  # of a tool's answer; head and tail of a longer one are kept
    response_tokens: int | None = None  # of an attempt after its prompt, what tools said counted

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> CallSettings:
        return cls(
            checked_mode(params.get("near_misses", "explain")),
            _positive(params, "result_characters"),
            _positive(params, "response_tokens"),
        )

    def shortened(self, text: str) -> str:
        """Shorten a tool's answer to `result_characters`: its beginning, a mark, and its end."""
        most = self.result_characters
        if most is None or len(text) <= most:
            return text
        tail = most // 2
        return f"{text[: most - tail]}...(truncated)...{text[len(text) - tail :]}"


def of_format(params: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the call format has of its own."""
    ours = {field.name for field in fields(CallSettings)}
    return {name: value for name, value in params.items() if name not in ours}


def _positive(params: Mapping[str, Any], name: str) -> int | None:
    value = params.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise UserError(f"rollout.call_params.{name}={value!r}: expected a positive integer")
    return value
