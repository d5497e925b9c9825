"""A process that outlives its run by a moment, and ends what the run has left behind.

Ray ends some of its processes with a driver that is killed -9, and leaves the others to notice. Every
process of a run carries its mark in its environment; some of Ray's write their title over it, and are known
by the log that they hold open in the folder of the session, which Ray names after the driver's pid. When the
driver is gone, for whatever reason, Ray's processes are killed: they have nothing to save and ignore SIGTERM.
Others, a tool's server for example, get SIGTERM, and SIGKILL if they are still there after a moment. A driver
that said `ENDED` has ended its own processes; of one that did not, some may still be starting. Once they are
gone, so are the folders that they worked in. The reaper is started as a file of its own, so that it costs no
import.

It also receives the driver's signals, from the C code that catches them. After a second Ctrl-C it gives the
driver a moment and then kills it, since a thread that keeps the interpreter busy lets no handler run.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

MARK = "TOOLWRIGHT_RUN"
GRACE_S = 3.0  # between SIGTERM and SIGKILL
INSISTENCE_S = 30.0  # in all, for those that come to light one after the other
# A process that is just being started shows no environment for a moment: that there is none has to last.
QUIET_S = 2.0
LOOK_AGAIN_S = 0.1
ENDED = b"ended"  # look whether anything is left
DISMISSED = b"dismissed"  # nothing is to be ended: what is left may serve the next run
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# For a driver that got two signals to stop: until it exits as it is, and until it is killed.
EXIT_S, PATIENCE_S = 0.7, 1.5
IS_THE_PROCESS = __name__ == "__main__" and len(sys.argv) == 5
# As Ray writes it; a session from before is somebody else's. Said by the driver, since on a busy machine this
# process may begin later than the session does.
BEGUN = sys.argv[4] if IS_THE_PROCESS else time.strftime("%Y-%m-%d_%H-%M-%S")


class Reaper:
    """`signals`: where a byte for each of the driver's signals goes; its number. `listens`: they go there."""

    def __init__(self, mark: str, *, listens: bool = False) -> None:
        self.mark, self.listens = mark, listens
        reader, self.signals = os.pipe()
        os.set_blocking(self.signals, False)
        arguments = [mark, str(os.getpid()), str(reader), time.strftime("%Y-%m-%d_%H-%M-%S")]
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", f"exec(open({__file__!r}).read())", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[reader],
            env={name: value for name, value in os.environ.items() if name != MARK},  # it is nobody's to end
            start_new_session=True,  # Ctrl-C is not meant for it
        )
        os.close(reader)

    def close(self, message: bytes = ENDED) -> None:
        with suppress(OSError):
            self.process.communicate(message)
        os.close(self.signals)


@contextmanager
def reap_children(*, signals: bool = True) -> Iterator[None]:
    """End everything that this process starts inside the block, however the process ends. After a second
    signal to stop, it ends in less than two seconds, whatever it is doing: with `signals`, and not in a
    notebook or at a prompt, where the process goes on after the run."""
    import threading
    import uuid

    signals = signals and not interactive()
    mark = _reapers[-1].mark if _reapers else uuid.uuid4().hex
    reaper, outer = Reaper(mark, listens=signals), os.environ.get(MARK)
    os.environ[MARK] = mark
    _reapers.append(reaper)
    main = signals and threading.current_thread() is threading.main_thread()
    before = signal.set_wakeup_fd(reaper.signals, warn_on_full_buffer=False) if main else -1
    try:
        yield
    finally:
        if main:
            signal.set_wakeup_fd(before)
        while _exit_timers:
            _exit_timers.pop().cancel()
        _reapers.remove(reaper)
        if outer is None:
            os.environ.pop(MARK, None)
        else:
            os.environ[MARK] = outer
        reaper.close(DISMISSED)


_reapers: list[Reaper] = []  # in this process, the innermost last
_exit_timers: list[Any] = []  # until the block has ended


def interactive() -> bool:
    """Return True if somebody types into this process: at Python's prompt, in IPython or in a notebook."""
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or (ipython is not None and ipython.get_ipython() is not None)


def exit_soon(status: int) -> None:
    """End this process with this status unless it has cleared up in a moment; its reaper does the rest.
    Does nothing without a reaper that listens to signals."""
    import threading

    if any(reaper.listens for reaper in _reapers):
        _exit_timers.append(threading.Timer(EXIT_S, os._exit, [status]))
        _exit_timers[-1].daemon = True
        _exit_timers[-1].start()


def folder_prefix(mark: str | None = None) -> str:
    """Return the prefix of this run's temporary folders: a killed driver cannot remove them."""
    return f"toolwright-run-{os.environ.get(MARK, 'none') if mark is None else mark}-"


def remove_folders(mark: str) -> None:
    import shutil
    import tempfile
    from pathlib import Path

    for folder in Path(tempfile.gettempdir()).glob(f"{folder_prefix(mark)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def carries(pid: int, mark: str) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return f"{MARK}={mark}".encode() in file.read().split(b"\0")
    return False


def marked(mark: str, driver: int = 0) -> list[int]:
    """Every process of ours that carries the mark, or is Ray's and of the driver's session; but this one."""
    there = os.listdir("/proc") if os.path.isdir("/proc") else []  # elsewhere Ray is left to itself
    return [
        pid for pid in map(int, filter(str.isdigit, there)) if pid != os.getpid() and ours(pid, mark, driver)
    ]


def ours(pid: int, mark: str, driver: int) -> bool:
    return carries(pid, mark) or (of_ray(pid) and of_session(pid, driver))


def of_ray(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read(5) == b"ray::"
    return False


def of_session(pid: int, driver: int) -> bool:
    """Return True if the process has a file of the driver's Ray session open."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                path = os.readlink(f"/proc/{pid}/fd/{number}")
                session = path.partition("/session_")[2].partition("/")[0]
                if session >= BEGUN and session.endswith(f"_{driver}"):
                    return True
    return False


def send_signal(pid: int, mark: str, driver: int, number: int) -> None:
    """Send a signal to our process, but never to another one that reuses its id."""
    with suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            if ours(pid, mark, driver):
                signal.pidfd_send_signal(process, number)
        finally:
            os.close(process)


def wait_for_driver(driver: int, signals: int) -> bytes:
    """Return what the driver said before it closed the pipe or died: a process that it forked may hold the
    pipe open for as long as it likes. A driver that goes on after two signals to stop is killed here."""
    watched, stdin = select.poll(), sys.stdin.fileno()
    watched.register(stdin, select.POLLIN)
    watched.register(signals, select.POLLIN)
    with suppress(OSError, AttributeError):  # it is gone already; there is no such call on this system
        watched.register(os.pidfd_open(driver), select.POLLIN)
    message, stops = b"", 0
    limit: float | None = None
    while os.getppid() == driver:
        left = None if limit is None else max(0.0, limit - time.monotonic()) * 1000
        ready = dict(watched.poll(left))
        if limit is not None and time.monotonic() >= limit:
            os.kill(driver, signal.SIGKILL)  # still our parent: its number is nobody else's
            break
        if signals in ready:
            received = os.read(signals, 4096)
            stops += sum(number in STOPPING for number in received)
            if stops > 1 and limit is None:
                limit = time.monotonic() + PATIENCE_S
            if not received:
                watched.unregister(signals)
        elif stdin in ready:
            received = os.read(stdin, 4096)
            if not received:
                break
            message += received
        elif ready:
            break
    os.set_blocking(stdin, False)  # it may have said more before it died
    with suppress(BlockingIOError):
        message += os.read(stdin, 4096)
    return message


def main(mark: str, driver: int, signals: int) -> None:
    last = wait_for_driver(driver, signals)
    if last == DISMISSED:
        return
    end_marked(mark, driver, quiet_s=0.0 if last == ENDED else QUIET_S)
    remove_folders(mark)


def end_marked(mark: str, driver: int, *, quiet_s: float) -> None:
    """End marked processes until none has come to light for `quiet_s`."""
    begun = last_seen = time.monotonic()
    ended_at: dict[int, float] = {}  # when each got SIGTERM
    while (now := time.monotonic()) < begun + GRACE_S + INSISTENCE_S:
        left = marked(mark, driver)
        if left:
            last_seen = now
        elif now >= last_seen + quiet_s:
            return
        for pid in left:
            if of_ray(pid) or now >= ended_at.setdefault(pid, now) + GRACE_S:
                send_signal(pid, mark, driver, signal.SIGKILL)
            elif ended_at[pid] == now:  # once: some take a second SIGTERM for haste
                send_signal(pid, mark, driver, signal.SIGTERM)
        time.sleep(LOOK_AGAIN_S)


if IS_THE_PROCESS:
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
