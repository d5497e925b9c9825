"""A call of a tool and its answer: what formats read, toolboxes run, and loops write back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

# What may be wrong with a call, for the count in its trajectory; an answer without any is "".
Trouble = Literal["", "malformed", "unknown_tool", "arguments", "raised", "timeout"]


@dataclass(frozen=True)
class ToolRequest:
    """What the policy asked for."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    id: str = ""  # where the format or the provider has one


@dataclass(frozen=True)
class Malformed:
    """Something that was meant as a call and cannot be read as one; `reason` is told to the policy."""

    reason: str


@dataclass(frozen=True)
class ToolResult:
    """What goes back to the policy, in words."""

    text: str
    trouble: Trouble = ""
