"""Tools: what a policy can call, built from configuration in the process that uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolwright.registry import Registry

# A tool is a typed function with a docstring, or a class: its keyword parameters are its settings, its
# `__call__` is what the policy calls, or its `tools()` lists several. A tool that needs a server says so:
# `needs=["sandbox"]`.
TOOLS: Registry[Callable[..., Any]] = Registry("tool", "toolwright.tools.builtin")
