"""A worker: the process between the server and the zygotes. It starts, watches, ends and answers runs.

It has one thread and one epoll. The pipes of a short run are never registered: they are read once, when the
run is over. Only a run that takes more than a few milliseconds has its pipes watched.
"""

from __future__ import annotations

import base64
import contextlib
import heapq
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from toolwright.sandbox import processes, wire
from toolwright.sandbox.cgroup import ControlGroup
from toolwright.sandbox.child import UNPREPARED
from toolwright.sandbox.child_pool import Child, ChildPool
from toolwright.sandbox.execution import MEMORY, CheckedRun, ChildAtWork, Execution
from toolwright.sandbox.interpreter import Interpreter
from toolwright.sandbox.output import Output
from toolwright.sandbox.processes import LOOK_EVERY_S

_ATTACH_AFTER_S = 0.005
_ASK_AGAIN_S = 0.005
_AT_ONCE = 1 << 16  # bytes of a message: malloc would have the kernel map a buffer of twice that
# Reads that empty a pipe that nobody writes to any more: an ordinary user's pipe holds at most 1 MiB.
_TO_THE_END = 32


class SandboxWorker:
    """Does everything that happens to runs after the queue."""

    def __init__(
        self,
        server: socket.socket,
        child_pools: dict[str, ChildPool],
        *,
        fallback: ChildPool,
        folder: str,
        group: ControlGroup | None,
    ) -> None:
        # Imported here, after the zygotes were forked: they stay without it.
        import orjson

        self._encode, self._decode = orjson.dumps, orjson.loads
        self._server = server
        self._child_pools = child_pools
        self._fallback = fallback  # if a package to preload is not installed
        self._folder = folder
        self._group = group
        self._frames = wire.Frames()
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._executions: dict[int, Execution] = {}  # by number of the child
        self._calls: dict[int, Execution | CheckedRun] = {}  # by number of the call
        self._interpreters: dict[int, Interpreter] = {}  # by number of the call that opened them
        self._sessions_by_child: dict[int, Interpreter] = {}
        self._cells: dict[int, Interpreter] = {}  # by number of the call that is under way
        self._timers: list[tuple[float, int]] = []
        self._actions: dict[int, Callable[[], None]] = {}
        self._next_timer = 0

    def serve(self, preloaded: tuple[str, ...]) -> NoReturn:
        self._watch(self._server.fileno(), self._read_server)
        for child_pool in self._child_pools.values():
            self._watch(child_pool.orders.fileno(), partial(self._read_zygote, child_pool))
            child_pool.fill()
        self._send(wire.READY, 0, self._encode({"preloaded": preloaded}))
        while True:
            for descriptor, _ in self._epoll.poll(self._until_next_timer()):
                reader = self._readers.get(descriptor)
                if reader is not None:
                    reader()
            self._run_timers()

    # Waiting.

    def _watch(self, descriptor: int, reader: Callable[[], None]) -> None:
        self._readers[descriptor] = reader
        self._epoll.register(descriptor, select.EPOLLIN)

    def _unwatch(self, descriptor: int) -> None:
        if self._readers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def after(self, seconds: float, action: Callable[[], None]) -> int:
        """Runs an action later, unless it is cancelled before."""
        self._next_timer += 1
        self._actions[self._next_timer] = action
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._next_timer))
        return self._next_timer

    def cancel(self, timer: int) -> None:
        self._actions.pop(timer, None)

    def _until_next_timer(self) -> float:
        while self._timers and self._timers[0][1] not in self._actions:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else -1

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, number = heapq.heappop(self._timers)
            action = self._actions.pop(number, None)
            if action is not None:
                action()

    # Messages of the server.

    def _read_server(self) -> None:
        data = self._server.recv(_AT_ONCE)
        if not data:
            self._leave(0)
        for kind, number, body in self._frames.feed(data):
            if kind == wire.RUN:
                self._start(number, self._decode(body))
            elif kind == wire.CHECK:
                self._start_checked(number, self._decode(body))
            elif kind == wire.OPEN:
                self._open(number, self._decode(body))
            elif kind == wire.CELL:
                self._run_cell(number, self._decode(body))
            elif kind == wire.CLOSE and number in self._interpreters:
                self._interpreters[number].end("closed")
            elif kind == wire.CANCEL and number in self._calls:
                self._calls[number].end("cancelled")
            elif kind == wire.CANCEL and number in self._cells:
                self._cells[number].interrupt()

    def _send(self, kind: int, number: int, body: bytes) -> None:
        try:
            self._server.sendall(wire.frame(kind, number, body))
        except (BrokenPipeError, ConnectionError):
            self._leave(0)

    def answer(self, number: int, result: dict[str, Any]) -> None:
        self._cells.pop(number, None)
        self._send(wire.RESULT, number, self._encode(result))

    def _leave(self, code: int) -> NoReturn:
        for child_pool in self._child_pools.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child_pool.pid, signal.SIGKILL)
        for child_pool in self._child_pools.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child_pool.pid, 0)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._group is not None:
            self._group.remove()
        os._exit(code)

    # Runs.

    def _start(self, number: int, job: dict[str, Any]) -> None:
        self._calls[number] = self._begin(job, partial(self._answer_run, number))

    def _answer_run(self, number: int, result: dict[str, Any]) -> None:
        del self._calls[number]
        self.answer(number, result)

    def _start_checked(self, number: int, job: dict[str, Any]) -> None:
        """Starts a solution and its checker, each with one end of a socket between them."""
        checked = self._calls[number] = CheckedRun(number)
        ends = socket.socketpair()
        for name, end in zip(("solution", "checker"), ends, strict=True):
            shared = {key: job[key] for key in ("queued_s", "timeout_s", "wall_s", "wall_is_deadline")}
            done = partial(self._answer_checked, checked, name)
            checked.runs[name] = self._begin({**job[name], **shared}, done, link=end)
        solution, checker = checked.runs.values()
        solution.waits_for, checker.waits_for = checker, solution

    def _answer_checked(self, checked: CheckedRun, name: str, result: dict[str, Any]) -> None:
        if checked.ended(name, result):
            del self._calls[checked.number]
            self.answer(checked.number, checked.results)

    def _begin(
        self,
        job: dict[str, Any],
        done: Callable[[dict[str, Any]], None],
        link: socket.socket | None = None,
    ) -> Execution:
        child = self._take_child(job)
        job["stdin"] = job["stdin"].encode()
        execution = Execution(child, job, done)
        self._executions[child.number] = execution
        self.deliver(child, wire.pack_job(job), link)
        execution.timers = [
            self.after(_ATTACH_AFTER_S, lambda: self._attach(execution)),
            self.after(min(LOOK_EVERY_S, job["timeout_s"]), lambda: self._look_after(execution)),
        ]
        child.pool.fill()
        return execution

    def _take_child(self, job: dict[str, Any]) -> Child:
        """A child for the job, under its memory limit. The job's files become bytes."""
        child = self._child_pools.get(job["kind"], self._fallback).take()
        job["files"] = {name: base64.b64decode(data) for name, data in job["files"].items()}
        if child.group is not None:
            child.group.set_limit(job["memory_bytes"])
        return child

    def _look_after(self, execution: Execution) -> None:
        """Ends a run that has passed a limit; otherwise looks again later."""
        pids = execution.processes()
        if pids:
            other = execution.waits_for
            execution.clock.look(pids, other.processes() if other else [])
        if passed := execution.clock.passed() or execution.exceeds(pids):
            execution.end(passed)
        else:
            next_look_s = execution.clock.next_look_s() if pids else _ASK_AGAIN_S
            execution.timers.append(self.after(next_look_s, lambda: self._look_after(execution)))

    def deliver(self, child: Child, data: bytes | memoryview, link: socket.socket | None = None) -> None:
        """Sends to a child without ever waiting for it. `link` is sent after the data, if there is one."""
        if child.channel.fileno() < 0:
            if link is not None:
                link.close()
            return  # the child ended before it had read everything
        child.channel.setblocking(False)
        sent = 0
        try:
            if data:
                sent = child.channel.send(data)
            if sent == len(data) and link is not None:
                socket.send_fds(child.channel, [b"l"], [link.fileno()])
                link.close()
                link = None
        except BlockingIOError:
            pass
        except ConnectionError:
            if link is not None:
                link.close()
            return  # the child has ended; its zygote will report how
        if sent < len(data) or link is not None:
            rest = memoryview(data)[sent:]
            self.after(0.001, lambda: self.deliver(child, rest, link))

    def _attach(self, execution: Execution) -> None:
        """Watches the pipes of a run that takes longer."""
        for stream in (execution.stdout, execution.stderr):
            self._watch(stream.descriptor, partial(self._read, execution, stream, "output"))
        if execution.reports:
            self._watch(execution.child.channel.fileno(), execution.read_report)

    def _read(self, run: Execution | Interpreter, stream: Output, too_much: str) -> None:
        """Reads a stream, and ends the run for the reason `too_much` if it wrote more than it may."""
        if not stream.drain():
            self._unwatch(stream.descriptor)
        if run.flooded():
            run.end(too_much)

    # Messages of the zygotes.

    def _read_zygote(self, child_pool: ChildPool) -> None:
        message = child_pool.orders.recv(wire.EVENT.size)
        if not message:
            self._leave(1)
        verb, number, value, cpu_s, _ = wire.EVENT.unpack(message)
        execution = self._executions.get(number)
        if verb == wire.PID:
            run = execution or self._sessions_by_child.get(number)
            if run is not None and value:
                run.meter = processes.MemoryMeter.of(
                    child_pool.pid, value, grouped=run.child.group is not None
                )
        elif execution is not None:
            self._finish(execution, value, cpu_s)
        elif number in self._sessions_by_child:
            self._sessions_by_child[number].ended(value)
        else:
            self._spare_ended(child_pool, number, value)

    def _finish(self, execution: Execution, status: int, cpu_s: float) -> None:
        del self._executions[execution.child.number]
        for timer in execution.timers:
            self.cancel(timer)
        for stream in (execution.stdout, execution.stderr):
            stream.drain(_TO_THE_END)
        if execution.reports:
            execution.read_report()
        if not execution.ended_by and execution.ran_out_of_memory():
            execution.ended_by = MEMORY
        result = execution.answer(status, cpu_s)
        self._close(execution)
        execution.done(result)
        self._sweep(execution.child)

    def _close(self, run: ChildAtWork) -> None:
        for descriptor in run.descriptors:
            self._unwatch(descriptor)
        run.close()

    def _sweep(self, child: Child) -> None:
        child.pool.release(child)
        if self._folder:
            shutil.rmtree(f"{self._folder}/{child.number}", ignore_errors=True)

    def _spare_ended(self, child_pool: ChildPool, number: int, status: int) -> None:
        """Handles a child that ended while it waited: it was killed, or could not be prepared."""
        child = child_pool.forget(number)
        if child is None:
            return
        stderr = Output(child.stderr, 4096)
        stderr.drain()
        text = stderr.take()
        child.close()
        self._sweep(child)
        if os.waitstatus_to_exitcode(status) == UNPREPARED:
            # The next child would fail in the same way.
            sys.stderr.write(text)
            sys.stderr.flush()
            self._leave(3)
        child_pool.fill()

    # Sessions.

    def _open(self, number: int, job: dict[str, Any]) -> None:
        child = self._take_child(job)
        interpreter = Interpreter(self, number, child, job)
        self._interpreters[number] = self._sessions_by_child[child.number] = interpreter
        self._watch(child.channel.fileno(), interpreter.read_channel)
        for stream in (interpreter.stdout, interpreter.stderr):
            reader = partial(self._read, interpreter, stream, "its code wrote too much output")
            self._watch(stream.descriptor, reader)
        self.deliver(child, wire.pack_job({**job, "stdin": b""}))
        child.pool.fill()

    def _run_cell(self, number: int, cell: dict[str, Any]) -> None:
        interpreter = self._interpreters.get(cell["session"])
        if interpreter is None:
            self.answer(number, {"lost": "its interpreter has ended"})
        else:
            self._cells[number] = interpreter
            interpreter.run(number, cell)

    def stop_reading(self, interpreter: Interpreter) -> None:
        self._unwatch(interpreter.child.channel.fileno())

    def forget_session(self, interpreter: Interpreter, why: str) -> None:
        """Closes a session whose last process is gone, and tells the server."""
        del self._interpreters[interpreter.number]
        del self._sessions_by_child[interpreter.child.number]
        self._close(interpreter)
        self._sweep(interpreter.child)
        self._send(wire.LOST, interpreter.number, self._encode({"why": why}))
