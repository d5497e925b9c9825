"""A program of the user's that attempts tasks: how it is started, and what it may decide."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator

from toolwright.config.block import Block

KINDS = {"command": "command", "function": "function", "url": "service"}


class AgentProgram(Block):
    """A program that attempts tasks: set one of `command`, `function` and `url`. The program asks the policy
    through OpenAI's or Anthropic's protocol, at an address and with a key that each attempt is given."""

    command: str | list[str] | None = None
    """a command line; the task is JSON on its standard input"""
    function: str | None = None
    """path.py:name or package.module:name"""
    url: str | None = None
    """a service that is sent one POST for each attempt"""
    concurrency: PositiveInt | None = None
    """attempts that run at the same time; null: by the kind and the cores"""
    answer: Literal["output", "transcript"] = "output"
    """what is scored: what it printed or returned, or what the policy said"""
    sampling: Literal["run", "agent"] = "run"
    """whose temperature, top_p and top_k apply"""
    model: str = "policy"
    """the model's name in its requests"""
    env: dict[str, str] = Field(default={})
    """further variables of a command's environment"""
    isolation: str = "none"
    """a command in the sandbox: full, available, or layers as `sandbox serve --isolation` takes them; none:
    outside"""
    readable: list[str] = Field(default=[])
    """further files and folders that a command in the sandbox may read"""

    @model_validator(mode="before")
    @classmethod
    def _one_way_to_start(cls, given: Any) -> Any:
        if isinstance(given, dict):
            ways = [name for name in KINDS if given.get(name) is not None]
            if len(ways) != 1:
                found = " and ".join(ways) or "none of them"
                raise ValueError(
                    f"rollout.agent={{…}}: expected one of command, function and url, found {found}"
                )
            if ways != ["command"] and given.get("isolation", "none") != "none":
                raise ValueError(
                    f"rollout.agent.isolation: the sandbox runs commands, and this is a {ways[0]}"
                )
        return given

    @property
    def kind(self) -> str:
        """The name of the registered agent that runs it."""
        return next(kind for key, kind in KINDS.items() if getattr(self, key) is not None)
