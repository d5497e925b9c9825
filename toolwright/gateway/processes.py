"""Child processes that are ended as a whole, with all that they started, and whose output has a limit."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from toolwright.sandbox.processes import tree

LINE_BYTES = 16 << 20  # of one line that a process writes
MARK = "TOOLWRIGHT_ATTEMPT"  # a variable in the environment of a child and all below it
CLOSING_S = 2.0  # for pipes that somebody else still holds open


class _Exiting(SubprocessStreamProtocol):
    """Notes the end of the process itself: asyncio waits for its pipes too, which others may hold open."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=LINE_BYTES, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class ChildProcess:
    """A process in a group of its own, and all that it starts. `mark` is in the environment of them alone."""

    def __init__(self, process: asyncio.subprocess.Process, exited: asyncio.Event, mark: str) -> None:
        self.process, self.exited, self.mark = process, exited, mark
        self._readers: list[asyncio.Task[bytes]] = []

    @classmethod
    async def start(
        cls,
        words: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        stdin: int = PIPE,
        pass_fds: Sequence[int] = (),
    ) -> ChildProcess:
        loop, mark = asyncio.get_running_loop(), uuid.uuid4().hex
        transport, protocol = await loop.subprocess_exec(
            lambda: _Exiting(loop), *words, stdin=stdin, stdout=PIPE, stderr=PIPE, cwd=cwd,
            env={**env, MARK: mark}, start_new_session=True, pass_fds=pass_fds,
        )  # fmt: skip
        return cls(asyncio.subprocess.Process(transport, protocol, loop), protocol.exited, mark)

    async def communicate(self, given: bytes, *, kept: int) -> tuple[bytes, bytes]:
        """Write to its standard input and wait for its end; the last bytes of what it printed."""
        streams = (self.process.stdout, self.process.stderr)
        self._readers = [asyncio.create_task(_tail(stream, kept)) for stream in streams if stream]
        assert self.process.stdin is not None
        with suppress(OSError):  # it need not read its task
            self.process.stdin.write(given)
            await self.process.stdin.drain()
        with suppress(OSError):
            self.process.stdin.close()
        await self.exited.wait()
        await self._kill()  # what it left in the background
        await asyncio.wait(self._readers, timeout=CLOSING_S)
        out, err = (one.result() if one.done() else b"" for one in self._readers)
        return out, err

    def read_errors(self) -> None:
        """Read its standard error for as long as it runs, so that it never waits to be read."""
        assert self.process.stderr is not None
        self._readers.append(asyncio.create_task(_tail(self.process.stderr, 1)))

    async def end(self) -> None:
        """Kill it and all below it."""
        for reader in self._readers:
            reader.cancel()
        await self._kill()
        await self.exited.wait()
        self.process._transport.close()  # type: ignore[attr-defined]

    async def _kill(self) -> None:
        kill(self.process.pid)
        await asyncio.to_thread(kill_marked, self.mark)  # to look takes milliseconds


def kill_marked(mark: str) -> None:
    """Kill the processes that have the mark: a daemon has left its group and its parent."""
    entry = f"{MARK}={mark}".encode()
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if entry in file.read_bytes().split(b"\0"):
                os.kill(int(file.parent.name), signal.SIGKILL)


def kill(pid: int) -> None:
    """Kill the group that a process leads, and what is below it and has left the group."""
    below = tree(pid)[1:]
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for one in below:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGKILL)


async def _tail(stream: asyncio.StreamReader, kept: int) -> bytes:
    """The last bytes of a stream, which may be endless."""
    found = b""
    while piece := await stream.read(1 << 16):
        found = (found + piece)[-kept:]
    return found
