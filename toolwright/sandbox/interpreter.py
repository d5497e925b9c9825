"""A session in its worker: a live interpreter that gets one cell at a time."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from toolwright.sandbox import wire
from toolwright.sandbox.child_pool import Child
from toolwright.sandbox.execution import MEMORY, ChildAtWork
from toolwright.sandbox.processes import LOOK_EVERY_S, Clock

if TYPE_CHECKING:
    from toolwright.sandbox.worker import SandboxWorker

_WATCH_IDLE_EVERY_S = 1.0
_OUT_OF_MEMORY = "its processes together used more memory than the limit"
_TOO_MANY_DESCRIPTORS = "its processes together held more descriptors than the limit"
_GRACE_S = 1.0  # between the interrupt of a late cell and the end of its session


class Interpreter(ChildAtWork):
    """A session of a worker.

    The code of a session shares a process with the loop that answers for it, so it may lie about its own
    cells. It cannot answer twice, answer for another session, or keep a call beyond its time.
    """

    def __init__(self, worker: SandboxWorker, number: int, child: Child, job: dict[str, Any]) -> None:
        super().__init__(child, job)
        self.number = number
        self._worker = worker
        self._received = bytearray()
        self._cells = 0
        self._call = 0
        self._cell: dict[str, Any] | None = None
        self._clock: Clock | None = None
        self._timer = 0
        self._end_timer = 0
        self._watch_timer = 0
        self._overran = False
        self._ended_by = ""
        self._watch_idle()

    def run(self, call: int, cell: dict[str, Any]) -> None:
        """Sends a cell. The server sends one at a time."""
        self._cells += 1
        self._call, self._cell, self._overran = call, cell, False
        self._clock = Clock(cell, of_a_cell=True)
        message = {"code": cell["code"], "number": self._cells, "value_bytes": self.job["output_bytes"]}
        self._worker.deliver(self.child, wire.pack_job(message))
        self._timer = self._worker.after(min(LOOK_EVERY_S, cell["timeout_s"]), self._look_after_cell)

    def _look_after_cell(self) -> None:
        assert self._clock is not None
        pids = self.processes()
        if pids:
            self._clock.look(pids)
        if self._clock.passed():
            self.interrupt()
        elif not self._ended_at_a_limit(pids):
            self._timer = self._worker.after(self._clock.next_look_s(), self._look_after_cell)

    def _watch_idle(self) -> None:
        """Checks the memory between cells too, less often: processes that they started may go on."""
        self._watch_timer = self._worker.after(_WATCH_IDLE_EVERY_S, self._check_memory)

    def _check_memory(self) -> None:
        if not self._ended_at_a_limit(self.processes()):
            self._watch_idle()

    def _ended_at_a_limit(self, pids: list[int]) -> bool:
        if passed := self.exceeds(pids):
            self.end(_OUT_OF_MEMORY if passed == MEMORY else _TOO_MANY_DESCRIPTORS)
        return bool(self._ended_by)

    def interrupt(self) -> None:
        """Ends a cell that takes too long, or that nobody waits for."""
        self._worker.cancel(self._timer)
        self._overran = True
        self.child.signal(signal.SIGINT)
        self._timer = self._worker.after(
            _GRACE_S, lambda: self.end("a cell overran and could not be interrupted")
        )

    def read_channel(self) -> None:
        try:
            data = self.child.channel.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            # Usually the interpreter is ending, and its zygote is about to report how.
            self._worker.stop_reading(self)
            why = "its code closed the channel of the session"
            self._end_timer = self._worker.after(_GRACE_S, lambda: self.end(why))
            return
        self._received += data
        self._read_reply()

    def _read_reply(self) -> None:
        if len(self._received) < wire.REPLY.size:
            return
        number, outcome, length = wire.REPLY.unpack_from(self._received)
        if not self._expects(number, length):
            self.end("its code wrote to the channel of the session")
        elif len(self._received) == wire.REPLY.size + length:
            value = bytes(self._received[wire.REPLY.size :]).decode("utf-8", "replace")
            self._received.clear()
            self._answer(outcome, value)

    def _expects(self, number: int, length: int) -> bool:
        """Return True if this is one answer to the running cell, with nothing after it."""
        current = number == self._cells and self._cell is not None
        return (
            current and length <= self.job["output_bytes"] and len(self._received) <= wire.REPLY.size + length
        )

    def _answer(self, outcome: int, value: str) -> None:
        self._worker.cancel(self._timer)
        if self._overran:
            status, reason = "timeout", "the cell passed its timeout and was interrupted; the session goes on"
        elif outcome == wire.CELL_OK:
            status, reason = "ok", ""
        elif self._ends_in_memory_error():
            status, reason = "memory", "an allocation was refused at the memory limit"
        else:
            status, reason = "error", ""
        self._reply(status, reason, exit_code=None, value=value or None)

    def _ends_in_memory_error(self) -> bool:
        self.stderr.drain()
        return self.stderr.ends_in_memory_error()

    def _reply(self, status: str, reason: str, *, exit_code: int | None, value: str | None) -> None:
        assert self._cell is not None
        assert self._clock is not None
        self.stdout.drain()
        self.stderr.drain()
        result: dict[str, Any] = {
            "status": status,
            "truncated": self.stdout.truncated or self.stderr.truncated,
            "stdout": self.stdout.take(),
            "stderr": self.stderr.take(),
            "value": value,
            "exit_code": exit_code,
            "duration_s": round(time.monotonic() - self._clock.started, 6),
            "queued_s": self._cell["queued_s"],
        }
        if reason:
            result["reason"] = reason
        self._cell = None
        self._worker.answer(self._call, result)

    def end(self, why: str) -> None:
        """Ends the interpreter. The zygote reports when it is gone."""
        if not self._ended_by:
            self._ended_by = why
            self.child.kill()

    def ended(self, status: int) -> None:
        """Handles the end of the last process of the session. Answers a cell under way."""
        self._worker.cancel(self._timer)
        self._worker.cancel(self._end_timer)
        self._worker.cancel(self._watch_timer)
        exit_code = os.waitstatus_to_exitcode(status)
        if not self._ended_by and self.ran_out_of_memory():
            self._ended_by = _OUT_OF_MEMORY
        why = self._ended_by or _exit_reason(exit_code)
        if self._cell is not None:
            if self._overran:
                verdict = "timeout"
            elif self._ended_by == _OUT_OF_MEMORY:
                verdict = "memory"
            elif self._ended_by or exit_code < 0:
                verdict = "killed"
            else:
                verdict = "ok" if exit_code == 0 else "error"
            self._reply(verdict, f"the session has ended: {why}", exit_code=exit_code, value=None)
        self._worker.forget_session(self, why)


def _exit_reason(exit_code: int) -> str:
    if exit_code >= 0:
        return f"its code left the interpreter with exit code {exit_code}"
    return f"its interpreter was killed by {signal.Signals(-exit_code).name}"
