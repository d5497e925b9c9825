"""Toolwright: train language-model agents to use tools by reinforcement learning.

The names of the Python interface are imported on first use, so that `import toolwright` takes no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolwright import config, workflow
    from toolwright.failures import UserError
    from toolwright.interface.commands import evaluate, sft
    from toolwright.interface.sandbox import Sandbox
    from toolwright.interface.trainer import Trainer, TrainingStep
    from toolwright.tasks import TaskSet
    from toolwright.tasks.environment import InvalidAction, Observation, Outcome
    from toolwright.tools.call import ToolResult
    from toolwright.tools.offer import ToolError
    from toolwright.trajectory import Task, Trajectory

__version__ = "0.2.0.dev0"

_HOMES = {
    "InvalidAction": "tasks.environment",
    "Observation": "tasks.environment",
    "Outcome": "tasks.environment",
    "Sandbox": "interface.sandbox",
    "TrainingStep": "interface.trainer",
    "Task": "trajectory",
    "TaskSet": "tasks",
    "ToolError": "tools.offer",
    "ToolResult": "tools.call",
    "Trainer": "interface.trainer",
    "Trajectory": "trajectory",
    "UserError": "failures",
    "evaluate": "interface.commands",
    "sft": "interface.commands",
}
_PACKAGES = ("config", "workflow")
__all__ = ["__version__", *_HOMES, *_PACKAGES]


def __getattr__(name: str) -> object:
    import importlib

    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
