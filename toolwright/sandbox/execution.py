"""A run under way in a worker, and the answer that it becomes."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from toolwright.sandbox import processes, wire
from toolwright.sandbox.child import UNPREPARED
from toolwright.sandbox.child_pool import Child
from toolwright.sandbox.output import Output
from toolwright.sandbox.processes import DEADLINE, STARVED, TIMEOUT, Clock, MemoryMeter

_REPORT_LIMIT = 64 << 20
MEMORY, DESCRIPTORS = "memory", "descriptors"


class ChildAtWork:
    """A child that runs untrusted code: its job, its output, and the limits that the worker watches."""

    def __init__(self, child: Child, job: dict[str, Any]) -> None:
        self.child, self.job = child, job
        self.stdout = Output(child.stdout, job["output_bytes"])
        self.stderr = Output(child.stderr, job["output_bytes"])
        self.meter: MemoryMeter | None = None

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """What the worker reads."""
        return self.stdout.descriptor, self.stderr.descriptor, self.child.channel.fileno()

    def flooded(self) -> bool:
        return self.stdout.total + self.stderr.total > self.job["flood_bytes"]

    def processes(self) -> list[int]:
        """Host pids of the run. Empty until the zygote has named the first process."""
        if self.meter is None:
            self.child.pool.order(wire.GET_PID, self.child.number)
            return []
        return processes.tree(self.meter.pid)

    def ran_out_of_memory(self) -> bool:
        """Return True if the kernel killed a process because the control group was full."""
        return self.child.group is not None and self.child.group.has_killed()

    def exceeds(self, pids: list[int]) -> str:
        """The limit that its processes have passed together, or nothing. Rlimits count each process alone."""
        if self.ran_out_of_memory() or self.too_heavy(pids):
            return MEMORY
        return DESCRIPTORS if self.holds_too_many(pids) else ""

    def too_heavy(self, pids: list[int]) -> bool:
        return self.meter is not None and self.meter.exceeds(self.job["memory_bytes"], pids)

    def holds_too_many(self, pids: list[int]) -> bool:
        return sum(map(processes.descriptors, pids)) > self.job["descriptors"]

    def close(self) -> None:
        self.stdout.close()
        self.stderr.close()
        self.child.channel.close()


class Execution(ChildAtWork):
    """A job in a child. The wait status says how it ended; `ended_by` says what the worker did to it."""

    def __init__(self, child: Child, job: dict[str, Any], done: Callable[[dict[str, Any]], None]) -> None:
        """`done` gets the answer."""
        super().__init__(child, job)
        self.clock, self.done = Clock(job), done
        # Why the worker ended it: a limit of the clock, memory, descriptors, output, checked or cancelled.
        self.ended_by = ""
        self.waits_for: Execution | None = None  # while that run works, this one may sleep
        self.timers: list[int] = []
        self.report = bytearray()

    @property
    def reports(self) -> bool:
        """True if the program runs in a child of the first process, which reports how it ended."""
        return bool(self.job["argv"] or self.job["fetch"])

    def end(self, why: str) -> None:
        if not self.ended_by:
            self.ended_by = why
            self.child.kill()

    def read_report(self) -> None:
        """Reads the report of the first process about the program below it, which never held this channel."""
        while len(self.report) < _REPORT_LIMIT:
            try:
                data = self.child.channel.recv(1 << 16)
            except (BlockingIOError, ConnectionError):
                return
            if not data:
                return
            self.report += data

    def answer(self, status: int, cpu_s: float) -> dict[str, Any]:
        """The result, once the last process of the run is gone and both pipes are read to their end."""
        report: dict[str, Any] = {}
        if self.reports:
            report = _parse_report(self.report)
            status = report.get("status", status)
        exit_code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        verdict, reason = self._verdict(exit_code, cpu_s)
        unjudged = self.ended_by == STARVED
        truncated = self.stdout.truncated or self.stderr.truncated
        result: dict[str, Any] = {
            "status": verdict,
            "stdout": self.stdout.take(),
            "stderr": self.stderr.take(),
            "exit_code": None if unjudged else exit_code,
            "duration_s": round(time.monotonic() - self.clock.started, 6),
            "queued_s": self.job["queued_s"],
            "truncated": truncated,
            "cpu_s": round(cpu_s, 6),
        }
        if reason:
            result["reason"] = reason
        if self.job["fetch"]:
            found = report.get("files", {})
            result["files"] = {
                name: _file_content(found[name]) for name in self.job["fetch"] if name in found
            }
        return result

    def _verdict(self, exit_code: int, cpu_s: float) -> tuple[str, str]:
        if self.ended_by == DEADLINE:
            return "timeout", "the deadline of the call passed before the run had ended"
        if self.ended_by == STARVED:
            return "killed", "queue: the machine was too busy to give the run its processor time"
        # Checked again here: the worker may have come too late to end it.
        if self.ended_by == TIMEOUT or cpu_s >= self.job["timeout_s"]:
            return "timeout", "the run passed its timeout in processor time and sleep, and was ended"
        if self.ended_by == MEMORY:
            return "memory", "the run's processes together used more memory than the limit"
        if self.ended_by == DESCRIPTORS:
            return "killed", "the run's processes together held more descriptors than the limit"
        if self.ended_by == "output":
            return "killed", "the run wrote too much output and was ended"
        if self.ended_by == "cancelled":
            return "killed", "the client hung up"
        if exit_code == 0:
            return "ok", ""
        if exit_code in (1, -signal.SIGABRT) and self.stderr.ends_in_memory_error():
            return "memory", "an allocation was refused at the memory limit"
        if exit_code == -signal.SIGKILL:
            return "killed", "the run was killed from outside"
        if exit_code == UNPREPARED and self.stderr.last_line().startswith(b"the sandbox could not"):
            return "killed", "the sandbox could not prepare this run"
        return "error", ""


class CheckedRun:
    """A solution and its checker: two runs that reach each other over one socket only. It ends with both."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.runs: dict[str, Execution] = {}
        self.results: dict[str, dict[str, Any]] = {}

    def end(self, why: str) -> None:
        for run in self.runs.values():
            run.end(why)

    def ended(self, name: str, result: dict[str, Any]) -> bool:
        """Keeps the result of one run; True if it was the last. The solution ends with the checker."""
        self.results[name] = result
        if name == "checker" and "solution" not in self.results:
            self.runs["solution"].end("checked")
        return len(self.results) == 2


def _parse_report(data: bytearray) -> dict[str, Any]:
    # The report comes from inside the sandbox: it may be cut short, and only its shape is believed.
    try:
        report = json.loads(data)
        status, files = report["status"], report["files"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    fits = isinstance(status, int) and 0 <= status <= 0xFFFF and isinstance(files, dict)
    return {"status": status, "files": files} if fits else {}


def _file_content(encoded: object) -> object:
    """A fetched file: as text if it is text, otherwise as base64."""
    try:
        content = base64.b64decode(str(encoded), validate=True)
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": str(encoded)}
    except ValueError:
        return ""
