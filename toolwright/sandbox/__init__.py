"""Isolated code execution: a server that is fast enough for rollouts, and its client.

The names below are imported on first use: what a child process imports must stay small.
"""

from __future__ import annotations

_HOMES = {
    "Client": "client",
    "SandboxSession": "client",
    "ExecutionResult": "client",
    "DeadlinePassed": "client",
    "SessionLost": "client",
    "BlockingClient": "client",
    "SandboxSettings": "settings",
    "RunLimits": "limits",
    "local_server": "local",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
