"""The isolation of commands: namespaces, limits, files of their own, and no address but the gateway's."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from toolwright.failures import UserError
from toolwright.gateway.processes import ChildProcess
from toolwright.sandbox import layers, view
from toolwright.sandbox.cgroup import ControlGroup
from toolwright.sandbox.enclosure import Enclosure

SETTING = "rollout.agent.isolation"
MEMORY_MB = 4096
# More than a run of the sandbox has: agents load SDKs, start threads and write files.
LIMITS = {"processes": 256, "open_files": 1024, "file_mb": 1024, "disk_mb": 1024}
PIECE = 1 << 16  # bytes that are passed on at once
log = logging.getLogger(__name__)
_numbers = itertools.count(1)


class CommandSandbox:
    """`isolation` is as the sandbox's own. The command reads the machine's programs, this Python with its
    packages, the `files` that it names itself, and what is `readable`; it writes to a folder in memory."""

    def __init__(self, isolation: str, files: Sequence[str], readable: Sequence[str]) -> None:
        self.layers = layers.choose(isolation, option=SETTING)
        absent = [name for name in layers.REQUIRED if name not in self.layers]
        if absent:
            log.warning("%s=%s: commands run without %s", SETTING, isolation, ", ".join(absent))
        missing = [path for path in readable if not os.path.exists(path)]
        if missing:
            raise UserError(f"rollout.agent.readable: there is no {missing[0]!r}")
        own = [os.path.abspath(path) for path in (*files, *readable)]
        self.readable = [*view.of_python().readable, *view.of_tools([]).readable, *own]

    @asynccontextmanager
    async def started(
        self, words: Sequence[str], *, folder: str, env: Mapping[str, str], url: str
    ) -> AsyncIterator[ChildProcess]:
        """Start a command that reaches the port of `url`, and end it with all that it started."""
        port = urlsplit(url).port or 80
        home = view.WORK if "mount" in self.layers else f"{folder}/work"
        enclosure = Enclosure(
            words=list(words),
            env={"HOME": home, "TMPDIR": home, **env},
            layers=sorted(self.layers),
            readable=self.readable,
            folder=folder,
            port=port,
            limits=LIMITS,
        )
        ours, theirs = socket.socketpair()
        group = self._group()
        relay: asyncio.Server | None = None
        try:
            launcher = [sys.executable, "-m", "toolwright.sandbox.enclosure", str(theirs.fileno())]
            python = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
            child = await ChildProcess.start(launcher, cwd=folder, env=python, pass_fds=(theirs.fileno(),))
            theirs.close()
            try:
                if group is not None:
                    group.add(child.process.pid)
                ours.sendall(enclosure.packed())
                relay = await _relay_from(ours, port)
                yield child
            finally:
                await child.end()
        finally:
            theirs.close()
            ours.close()
            if relay is not None:
                relay.close()
            if group is not None:
                await asyncio.to_thread(group.remove)

    def _group(self) -> ControlGroup | None:
        if layers.CGROUP not in self.layers:
            return None
        group = ControlGroup(f"toolwright-agent-{os.getpid()}-{next(_numbers)}")
        made = group.make(memory_bytes=MEMORY_MB << 20, processes=LIMITS["processes"])
        return group if made else None


async def _relay_from(launcher: socket.socket, port: int) -> asyncio.Server | None:
    """Wait until the command is about to start, and pass on what connects to its socket. None where it has
    the machine's own loopback, or could not be started."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(launcher, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(launcher)
    _, descriptors, _, _ = socket.recv_fds(launcher, 1, 1)
    if not descriptors:
        return None
    listener = socket.socket(fileno=descriptors[0])
    listener.setblocking(False)

    async def connected(inside: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        outside, requests = await asyncio.open_connection("127.0.0.1", port)
        ways = [
            asyncio.create_task(_pass_on(inside, requests)),
            asyncio.create_task(_pass_on(outside, answers)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            requests.close()
            answers.close()

    return await asyncio.start_server(connected, sock=listener)


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await source.read(PIECE):
            target.write(piece)
            await target.drain()
