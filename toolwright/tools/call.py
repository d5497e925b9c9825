"""A call of a tool and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from toolwright.trajectory import Task

# What went wrong with a call, for the counts of its trajectory; "" for none.
Trouble = Literal["", "malformed", "unknown_tool", "arguments", "raised", "timeout"]


@dataclass(frozen=True)
class ToolRequest:
    """A call that the policy made."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    id: str = ""  # if the format or the provider has one


@dataclass(frozen=True)
class Caller:
    """The caller of a tool: the id of the attempt, and its task if it has one."""

    attempt: str
    task: Task | None = None


@dataclass(frozen=True)
class Malformed:
    """Text that was meant as a call and cannot be read as one. The policy sees `reason`."""

    reason: str


@dataclass(frozen=True)
class SandboxUse:
    """The use of the sandbox by one run: seconds at work, seconds in the queue, and whether it was killed."""

    ran_s: float
    queued_s: float
    killed: bool


@dataclass(frozen=True)
class ToolResult:
    """The text that goes back to the policy. A tool may return one itself, to reward the call."""

    text: str
    trouble: Trouble = ""
    reward: float | None = None  # goes to the step that made the call
    images: tuple[str, ...] = ()  # data URLs, shown after the text
    sandbox: SandboxUse | None = None  # where it ran in one
