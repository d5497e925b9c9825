"""A scoring function in a process of its own: killed if it hangs, started again for the next call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.rewards.function import Verdict
from toolwright.rewards.item import Item

# Importing a user's module may import torch, on a cold disk.
START_LIMIT_S = 120.0
CLOSE_LIMIT_S = 1.0

# The child finds the parent's modules from any working directory; `-m` would need an installed package.
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from toolwright.rewards import worker; "
)
_BOOTSTRAP += "worker.main(int(sys.argv[2]))"


@dataclass(frozen=True)
class Form:
    """The form of the function, as the process found it."""

    whole_batch: bool
    reads_truth: bool
    columns: list[str]


class FunctionProcess:
    """The parent's side. The child is a fresh interpreter, not a fork: it shares no lock or device."""

    def __init__(
        self,
        reference: str,
        *,
        limit_s: float,
        name: str = "",
        settings: Mapping[str, Any] | None = None,
        imports: Sequence[str] = (),
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        self.reference = name or reference
        self._limit_s, self._start_limit_s = limit_s, start_limit_s
        where, _, name = reference.rpartition(":")
        self._modules = [str(Path(entry).resolve()) for entry in sys.path] + [str(Path.cwd())]
        if where.endswith(".py"):
            path = Path(where).expanduser().resolve()
            reference = f"{path}:{name}"
            self._modules.append(str(path.parent))  # for the modules that lie beside it
        self._request = {
            "reference": reference,
            "name": self.reference,
            "settings": dict(settings or {}),
            "imports": list(imports),
        }
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def start(self) -> Form:
        """Starts the process, as a call would do too, and gives the form of the function."""
        with self._lock:
            return self._start()

    def judge(self, items: Sequence[Item]) -> list[Verdict]:
        """Make one call for all items, and return a verdict for each. The limit is for the call."""
        with self._lock:
            return self._call(list(items))

    def close(self) -> None:
        """Ends the process without waiting for a function that hangs."""
        self._closed = True
        while not self._lock.acquire(timeout=0.05):
            if (busy := self._process) is not None:
                _kill(busy)
        try:
            self._stop(grace_s=CLOSE_LIMIT_S)
        finally:
            self._lock.release()

    def _call(self, items: list[Item]) -> list[Verdict]:
        if self._closed:
            message = f"{self.reference} was called after its process was closed"
            return [Verdict(kind="infrastructure", message=message)] * len(items)
        try:
            if self._process is None:
                self._start()
            self._send(items)
            answer = self._receive(self._limit_s)
        except (InfrastructureFailure, UserError) as error:
            # A UserError here means that it started once and does not start again.
            return [Verdict(kind="infrastructure", message=str(error))] * len(items)
        if answer is None:
            self._stop()
            batch = f" for a batch of {len(items)}" if len(items) > 1 else ""
            message = (
                f"{self.reference} did not return within reward.timeout_s={self._limit_s:g} s{batch}; "
                "its process was killed"
            )
            return [Verdict(message=message)] * len(items)
        return [Verdict(**verdict) for verdict in answer["verdicts"]]

    def _start(self) -> Form:
        """Starts the process and waits until it has the function."""
        ours, theirs = Pipe()
        command = [sys.executable, "-c", _BOOTSTRAP, json.dumps(self._modules), str(theirs.fileno())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # its children die with it, and the parent handles Ctrl-C
        )
        theirs.close()
        self._connection = ours
        try:
            self._send(self._request)
            answer = self._receive(self._start_limit_s)
        except InfrastructureFailure as error:
            raise UserError(f"{self.reference} cannot be imported: {error}") from None
        if answer is None:
            self._stop()
            raise UserError(f"{self.reference} was not ready within {self._start_limit_s:g} s")
        if "error" in answer:
            self._stop()
            raise UserError(answer["error"])
        return Form(**answer)

    def _send(self, message: Any) -> None:
        assert self._connection is not None
        try:
            self._connection.send_bytes(json.dumps(message).encode())
        except OSError:
            raise self._died() from None

    def _receive(self, limit_s: float) -> dict[str, Any] | None:
        """The answer, or None if none comes within the limit."""
        assert self._connection is not None
        try:
            if not self._connection.poll(limit_s):
                return None
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
            return answer
        except (EOFError, OSError):
            raise self._died() from None

    def _died(self) -> InfrastructureFailure:
        code = self._stop(grace_s=CLOSE_LIMIT_S)
        cause = f" ({signal.Signals(-code).name})" if code < 0 else ""
        return InfrastructureFailure(f"the process of {self.reference} died with exit code {code}{cause}")

    def _stop(self, *, grace_s: float = 0.0) -> int:
        """Ends the process and its children, and gives its exit code."""
        process, self._process = self._process, None
        if self._connection is not None:
            self._connection.close()  # an idle process ends when it sees this
            self._connection = None
        if process is None:
            return 0
        if grace_s:
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
        _kill(process)
        return process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills the process and its children, which may outlive it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
