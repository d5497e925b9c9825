"""An engine's process as its parent handles it: started, asked and ended; it never outlives the parent."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from toolwright.failures import InfrastructureFailure, UserError

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
FAREWELL_S = 10.0  # for an engine to close what it opened, before it is killed
SHARED = ("/dev/shm/psm_", "/dev/shm/sem.mp-")  # as Python calls blocks and semaphores
LINES_TOLD = 12  # of what it wrote last, when it died


class EngineProcess:
    """Questions leave and answers arrive in threads of their own: a role may wait for them in a loop, or not.

    The process leads a group of its own: Ctrl-C at a terminal does not reach it, and whoever ends it ends all
    that it started. If the parent is killed, it reads the end of the socket and goes.
    """

    def __init__(
        self,
        who: str,
        module: str,
        settings: Mapping[str, Any],
        *,
        limit_s: float,
        folder: Path | None = None,
    ) -> None:
        """`settings` are sent to it first. `folder`: its scratch, which goes when it goes."""
        self.who, self.limit_s = who, limit_s
        self.folder = folder or Path(tempfile.mkdtemp(prefix="toolwright-engine-"))
        self.log = self.folder / "log.txt"
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers, self._lock = count(1), threading.Lock()
        self._to_send: SimpleQueue[bytes | None] = SimpleQueue()
        self._closing = False
        self.died: str | None = None
        ours, theirs = socket.socketpair()
        with self.log.open("wb") as log, theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=_environment(settings.get("environment", {})),
            )
        self.wire = Connection(ours.detach())
        self._reader = threading.Thread(target=self._read, name=f"{who} answers", daemon=True)
        self._reader.start()
        self._writer = threading.Thread(target=self._write, name=f"{who} questions", daemon=True)
        self._writer.start()
        try:
            self.description: dict[str, Any] = self.result("open", dict(settings))
        except BaseException:
            self.close()
            raise

    def ask(self, what: str, *arguments: Any) -> tuple[int, Future[Any]]:
        """Send a question. Returns its number and a future of the answer."""
        number, answer = next(self._numbers), Future[Any]()
        answer.set_running_or_notify_cancel()  # whoever stops waiting does not cancel the reader's work
        with self._lock:
            if self.died is not None:
                raise InfrastructureFailure(self.died)
            self._waiting[number] = answer
        self.tell(what, number, *arguments)
        return number, answer

    def tell(self, what: str, number: int, *arguments: Any) -> None:
        """Send without waiting: a process that no longer reads must not block its caller."""
        self._to_send.put(pickle.dumps((what, number, *arguments)))

    def result(self, what: str, *arguments: Any) -> Any:
        """The answer, waited for in this thread."""
        _, answer = self.ask(what, *arguments)
        try:
            return answer.result(self.limit_s)
        except TimeoutError:
            raise InfrastructureFailure(
                f"{self.who} has not answered {what!r} within engine.timeout_s={self.limit_s:g} s"
            ) from None

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        shared = shared_memory(self.process.pid)
        self.tell("close", 0)
        self._to_send.put(None)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(FAREWELL_S)
        kill_group(self.process, shared)
        self._reader.join(FAREWELL_S)
        self._writer.join(FAREWELL_S)
        self.wire.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self) -> None:
        with suppress(OSError):  # the reader notices its death and tells everyone who waits
            while (message := self._to_send.get()) is not None:
                self.wire.send_bytes(message)

    def _read(self) -> None:
        while True:
            try:
                kind, number, content = self.wire.recv()
            except (EOFError, OSError):
                break
            answer = self._waiting.pop(number, None)
            if answer is None:
                continue
            if kind == "done":
                answer.set_result(content)
            else:
                answer.set_exception({"refused": UserError}.get(kind, InfrastructureFailure)(content))
        self._bury()

    def _bury(self) -> None:
        code = self.process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        with self._lock:
            self.died = (
                f"{self.who} was closed" if self._closing else f"{self.who} died ({how}){self._last()}"
            )
            waiting, self._waiting = list(self._waiting.values()), {}
        for answer in waiting:
            answer.set_exception(InfrastructureFailure(self.died))

    def _last(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return (
            "".join(f"\n  {line}" for line in ["; its last output:", *lines[-LINES_TOLD:]]) if lines else ""
        )


def kill_group(process: subprocess.Popen[Any], shared: Iterable[Path]) -> None:
    """A process and all that it started. With them goes the one that Python has to clear away what they
    `shared`, so that is left to do."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for left in shared:
        left.unlink(missing_ok=True)


def shared_memory(group: int) -> set[Path]:
    """Find the shared memory of this group's processes, where there is a /proc to ask."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(place.name)) == group:
                lines = (place / "maps").read_text().splitlines()
                found |= {line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line}
    return {Path(name) for name in found if name.startswith(SHARED) and not name.endswith("(deleted)")}


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Our environment variables, the engine's defaults for those that are not set, and the path to this
    package."""
    path = os.pathsep.join([str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**own, **os.environ, "PYTHONPATH": path}
