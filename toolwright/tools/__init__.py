"""Tools that a policy can call, built from configuration in the process that uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolwright.registry import Registry

# A tool is a typed function with a docstring, or a class. The keyword parameters of a class are its settings.
# The policy calls its `__call__`, or the functions that its `tools()` returns. A tool that needs a sandbox
# server says so: `needs=["sandbox"]`.
TOOLS: Registry[Callable[..., Any]] = Registry("tool", "toolwright.tools.builtin")
