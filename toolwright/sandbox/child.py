"""A sealed child: it reads its job, becomes the program of the job, and ends.

Nobody outside trusts anything here. The zygote reads from the wait status how a run ended.
"""

from __future__ import annotations

import _random
import base64
import contextlib
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from toolwright.sandbox import cells, checker, limits, program, solution, wire

UNPREPARED = 120
_WARM_UPS = 60
_PATH = "/usr/local/bin:/usr/bin:/bin"


def run(channel: int, *, base_bytes: int) -> NoReturn:
    """Waits for a job and runs it."""
    job = wire.read_job(channel)
    if job is None:
        os._exit(0)
    _prepare(job, base_bytes)
    if "session" in job:
        cells.serve(channel)
    if "argv" in job or "fetch" in job:
        _run_below(channel, job)
    link = _receive_link(channel) if "linked" in job else -1
    _close_channel(channel)
    if "checks" in job:
        checker.check(job.get("setup", ""), job["checks"], job.get("entry_point", ""), link)
    if link >= 0:
        solution.serve(job.get("code", ""), link)
    program.run(job.get("code", ""))


def _receive_link(channel: int) -> int:
    """Return one end of the socket between a solution and its checker."""
    with socket.socket(fileno=os.dup(channel)) as worker:
        _, descriptors, _, _ = socket.recv_fds(worker, 1, 1)
    return descriptors[0]


def _prepare(job: dict[str, Any], base_bytes: int) -> None:
    if "limited" in job:
        # A forked interpreter starts with the zygote's mappings; another program starts with none.
        memory = job["memory_bytes"] + (0 if "argv" in job else base_bytes)
        limits.for_the_job(job["timeout_s"], memory, "limit_address_space" in job)
    if "stdin" in job:
        _open_stdin(job["stdin"])
    if "files" in job:
        _put_files(job["files"], job.get("executable", ""))
    _reseed()


def _close_channel(channel: int) -> None:
    """Closes the channel before untrusted code starts: whoever holds it can report for the run."""
    os.close(channel)


_WARM_UP_CODE = """
import sys, math, collections
class Point:
    def __init__(self, x): self.x = x
def total(n): return sum(Point(i).x + math.sqrt(i) for i in range(n))
print(total(20), {"a": [1, 2]}, f"{3.5:.2f}", sorted("hello"), sep=" ")
"""


def warm_up() -> None:
    """Does in the zygote, before the first fork, what every run does.

    The interpreter specialises its code and fills caches as it goes. Once that is done here, no child has to
    copy the memory that holds them to do it again.
    """
    reading, writing = os.pipe()
    job = wire.pack_job({"code": _WARM_UP_CODE})
    for _ in range(_WARM_UPS):
        os.write(writing, job)
        received = wire.read_job(reading)
        assert received is not None
        _reseed()
        program.finish(program.execute(received["code"]))
    os.close(reading)
    os.close(writing)
    solution.warm_up()
    checker.warm_up()


def _reseed() -> None:
    """Seeds random generators: those seeded at import would give every child the same numbers."""
    if "random" in sys.modules:
        # The method of the C class: that of `random` does more than a fresh generator needs.
        _random.Random.seed(sys.modules["random"]._inst)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _put_files(files: dict[str, bytes], executable: str) -> None:
    for name, content in files.items():
        folder = os.path.dirname(name)
        try:
            if folder:
                os.makedirs(folder, exist_ok=True)
            with open(name, "wb") as file:
                file.write(content)
        except OSError as error:
            os.write(2, f"the file {name} could not be written: {error.strerror}\n".encode())
            os._exit(1)
    if executable:
        os.chmod(executable, 0o700)


def _open_stdin(content: bytes) -> None:
    """Makes descriptor 0 an unnamed file, so that code can open it or pass it to a child."""
    name = ".stdin"
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(name)
    wire.write_all(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.dup2(descriptor, 0)
    os.close(descriptor)


def _run_below(channel: int, job: dict[str, Any]) -> NoReturn:
    """Runs the program in a child process, so that this one can read its files whatever ends it."""

    def run_program() -> NoReturn:
        _close_channel(channel)
        if "argv" not in job:
            program.run(job.get("code", ""))
        try:
            os.execve(job["argv"][0], job["argv"], {"PATH": _PATH})
        except OSError as error:
            os.write(2, f"{job['argv'][0]}: {error.strerror}\n".encode())
        os._exit(127)

    status = _run_and_wait(run_program)
    files = _read_files(job.get("fetch", []), job["fetch_bytes"])
    wire.write_all(channel, json.dumps({"status": status, "files": files}).encode())
    os._exit(0)


def _run_and_wait(run: Callable[[], NoReturn]) -> int:
    """Runs a function in a process of its own and gives the wait status. Reaps orphans on the way."""
    child = os.fork()
    if child == 0:
        run()
    # The first process of a namespace ignores signals without a handler, so its children cannot end it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while True:
        done, status = os.wait()
        if done == child:
            return status


def _read_files(names: list[str], budget: int) -> dict[str, str]:
    """Reads files from inside the sandbox: a link can only lead to what the run itself could see."""
    found = {}
    for name in names:
        with (
            contextlib.suppress(OSError, ValueError, MemoryError),
            open(name, "rb", opener=_open_without_waiting) as file,
        ):
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                continue  # a pipe or a device may have no end
            content = file.read(budget + 1)
            if len(content) <= budget:
                budget -= len(content)
                found[name] = base64.b64encode(content).decode()
    return found


def _open_without_waiting(name: str, flags: int) -> int:
    """Opens a file. Opening a pipe would otherwise wait for a writer."""
    return os.open(name, flags | os.O_NONBLOCK)
