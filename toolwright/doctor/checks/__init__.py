"""The checks of a machine: each is one function, registered by name in a module of this package.

A plugin adds its own to the place `toolwright.doctor.checks`. `needs` tells what a check waits for: those
that need the `network` start first and wait side by side, those that need `torch` come last.
"""

from __future__ import annotations

from collections.abc import Callable

from toolwright.doctor.result import CheckResult, warning
from toolwright.registry import Entry, Registry

Check = Callable[[], CheckResult]
CHECKS: Registry[Check] = Registry("check", __name__)

# Modules in the order in which their checks are shown; others come before the last.
FIRST = ("machine", "system_limits", "storage", "network", "hub", "packages", "ray", "sandbox")
LAST = ("accelerator", "exactness")


def in_order() -> list[Entry[Check]]:
    """Every check: by its module, then as the module has them."""
    return sorted(map(_loaded, CHECKS.names()), key=_place)


def _loaded(name: str) -> Entry[Check]:
    """A check of a plugin that cannot be imported is a check that says so."""
    try:
        return CHECKS.get(name)
    except Exception as error:
        broken = f"could not be loaded: {type(error).__name__}: {error}"
        return Entry(
            name, lambda: warning(broken, "repair or uninstall the plugin that adds it"), frozenset()
        )


def _place(entry: Entry[Check]) -> tuple[int, str, int]:
    module = entry.target.__module__.rpartition(".")[2]
    order = (*FIRST, "", *LAST)
    at = order.index(module if module in order else "")
    code = getattr(entry.target, "__code__", None)
    return at, module, code.co_firstlineno if code else 0
