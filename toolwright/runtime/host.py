"""The process of one actor: it holds roles, answers for them, and tells what it is doing from the side."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolwright.registry import load_object
from toolwright.runtime import user_code
from toolwright.runtime.timeline import Event, Stages


@dataclass(frozen=True)
class Identity:
    """Which process this is, so that no other is taken for it."""

    pid: int
    born: str  # as the kernel counts: a pid that is used again has another
    host: str


@dataclass(frozen=True)
class Rank:
    """Which of a role's processes this is, and where the first of them can be met by the others."""

    index: int = 0
    count: int = 1
    master: str = ""  # host:port; empty for one that is alone


@dataclass(frozen=True)
class Pulse:
    """What an actor tells when asked."""

    stages: list[tuple[str, float]]  # name and seconds so far of what is under way
    awaits: str


class RoleHost:
    """Knows nothing of Ray: `colleagues` reaches a role of another process by its name."""

    def __init__(self, who: str) -> None:
        self.stages = Stages(who)
        self.roles: dict[str, Any] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="role")

    async def open(
        self,
        members: str,
        names: Sequence[str],
        brief: Any,
        colleagues: Callable[[str], Any],
        moved: Mapping[str, str],
        rank: Rank,
    ) -> Identity:
        """Builds the roles; what a user got wrong is raised from here, not from a constructor."""
        here = user_code.arrive(moved)
        build = load_object(members)
        with self.stages.stage("open"):
            told = user_code.relocated(brief, here)
            self.roles = await self._in_thread(build, names, told, colleagues, rank)
        return identity()

    async def ask(self, role: str, method: str, *arguments: Any) -> Any:
        """One call of a role's method: on this loop where that is asynchronous, else in the roles' thread."""
        work = getattr(self.roles[role], method)
        with self.stages.stage(f"{role}.{method}"):
            if inspect.iscoroutinefunction(work):
                return await work(*arguments)
            return await self._in_thread(work, *arguments)

    async def close(self) -> None:
        """Each role ends what it started."""
        for role in self.roles.values():
            close = getattr(role, "close", None)
            if close is not None:
                done = close()
                if inspect.isawaitable(done):
                    await done

    def pulse(self) -> Pulse:
        now = time.time()
        self.stages.sample_gpu()
        stages = [(open.stage, now - open.started) for open in self.stages.current]
        told = [role.awaits() for role in self.roles.values() if hasattr(role, "awaits")]
        return Pulse(stages, ", ".join(filter(None, [self.stages.awaits, *told])))

    def stacks(self) -> str:
        """Where every thread of this process is."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        return "\n".join(
            f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sys._current_frames().items()
            if ident != threading.get_ident()
        )

    def drain(self) -> list[Event]:
        """What was done since last asked, and what was survived."""
        died = [what for role in self.roles.values() if hasattr(role, "survived") for what in role.survived()]
        now = [Event(self.stages.who, "survived", time.time(), 0.0, 0.0, died=what) for what in died]
        return [*self.stages.drain(), *now]

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


def identity() -> Identity:
    pid = os.getpid()
    return Identity(pid, born(pid), socket.gethostname())


def born(pid: int) -> str:
    """When the process began, in the kernel's ticks; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def free_address(host: str) -> str:
    """Where the ranks of a role may meet: here, at a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{host}:{probe.getsockname()[1]}"
