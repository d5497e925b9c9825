"""Hosts the roles of one process: it holds them, calls their methods, and reports what it is doing."""

from __future__ import annotations

import inspect
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolwright.registry import load_object
from toolwright.runtime.timeline import Event, Stages


@dataclass(frozen=True)
class Identity:
    """Identifies a process, so that it is never confused with another one."""

    pid: int
    born: str  # as the kernel counts: a pid that is used again has another
    host: str


@dataclass(frozen=True)
class Rank:
    """The number of this process among those of a role, and the address at which they meet."""

    index: int = 0
    count: int = 1
    master: str = ""  # host:port; empty for one that is alone


ALONE = Rank()


@dataclass(frozen=True)
class Pulse:
    """The answer of an actor to its supervisor."""

    stages: list[tuple[str, float]]  # name and seconds so far of what is under way
    awaits: str


class RoleHost:
    """Knows nothing of Ray. A run in one process has a single host, whose roles are called directly."""

    def __init__(self, who: str) -> None:
        self.stages = Stages(who)
        self.roles: dict[str, Any] = {}

    def build(
        self,
        builder: str | Callable[..., None],
        names: Sequence[str],
        role_config: Any,
        remote_role: Callable[[str], Any] | None = None,
        rank: Rank = ALONE,
    ) -> None:
        """Call `builder` to put the named roles into `roles`, so that those already built can be closed if
        the next one fails. `remote_role` reaches a role of another process."""
        build = load_object(builder) if isinstance(builder, str) else builder
        with self.stages.stage("open"):
            build(self.roles, names, role_config, remote_role, rank)

    def call(self, role: str, method: str, *arguments: Any) -> Any:
        """Call a role's method, and await it if it is asynchronous."""
        work = getattr(self.roles[role], method)
        if inspect.iscoroutinefunction(work):
            return self._awaited(role, method, work, arguments)
        with self.stages.stage(f"{role}.{method}"):
            return work(*arguments)

    async def _awaited(self, role: str, method: str, work: Any, arguments: Sequence[Any]) -> Any:
        with self.stages.stage(f"{role}.{method}"):
            return await work(*arguments)

    async def close(self) -> None:
        """Close every role, the last one first, even if closing one of them raises."""
        async with AsyncExitStack() as stack:
            for role in self.roles.values():
                close = getattr(role, "close", None)
                if inspect.iscoroutinefunction(close):
                    stack.push_async_callback(close)
                elif close is not None:
                    stack.callback(close)

    def pulse(self) -> Pulse:
        now = time.time()
        self.stages.sample_gpu()
        stages = [(open.stage, now - open.started) for open in self.stages.current]
        waits = [role.awaits() for role in self.roles.values() if hasattr(role, "awaits")]
        return Pulse(stages, ", ".join(filter(None, [self.stages.awaits, *waits])))

    def stacks(self) -> str:
        """Return the stack of every thread of this process."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        return "\n".join(
            f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sys._current_frames().items()
            if ident != threading.get_ident()
        )

    def drain(self) -> list[Event]:
        """The events since the last call, processes that died beneath a role among them."""
        died = [what for role in self.roles.values() if hasattr(role, "survived") for what in role.survived()]
        now = [Event(self.stages.who, "survived", time.time(), 0.0, 0.0, died=what) for what in died]
        return [*self.stages.drain(), *now]


def identity() -> Identity:
    pid = os.getpid()
    return Identity(pid, born(pid), socket.gethostname())


def born(pid: int) -> str:
    """Return when the process started, in kernel ticks; empty if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def free_address(host: str) -> str:
    """Return a free port on this host where the ranks of a role can meet."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{host}:{probe.getsockname()[1]}"
