"""A process that outlives its run by a moment, and ends what the run has left behind.

Ray ends some of its processes with a driver that is killed -9, and leaves the others to notice. Every
process of a run carries its mark in its environment; some of Ray's write their title over it, and are known
by the log that they hold open in the folder of the session, which Ray names after the driver's pid. When the
driver is no more, for whatever reason, Ray's own that are still there are killed, since they have nothing to
save and pay no heed to less; others, a tool's server say, are told to end, and killed if they have not after
a moment. A driver that says farewell first has ended its own; of one that did not, anything may still be on
its way. Started as a file of its own, so that it costs no import.

It also hears of the driver's signals, from the C code that receives them: of a second Ctrl-C it gives the
driver a moment and kills it then, since a thread that keeps the interpreter busy lets no handler run.
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
GRACE_S = 3.0  # between being told to end and being killed
INSISTENCE_S = 30.0  # in all, for those that come to light one after the other
# A process that is just being started shows no environment for a moment: that there is none has to last.
QUIET_S = 2.0
LOOK_AGAIN_S = 0.1
FAREWELL = b"ended"  # look whether anything is left
DISMISSAL = b"dismissed"  # nothing is to be ended: what is left may serve the next run
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# For a driver that was told twice to stop: until it leaves as it is, and until it is killed.
LEAVING_S, PATIENCE_S = 0.7, 1.5
IS_THE_PROCESS = __name__ == "__main__" and len(sys.argv) == 5
# As Ray writes it; a session from before is somebody else's. Said by the driver, since on a busy machine this
# process may begin later than the session does.
BEGUN = sys.argv[4] if IS_THE_PROCESS else time.strftime("%Y-%m-%d_%H-%M-%S")


class Reaper:
    """`signals`: where a byte for each of the driver's signals goes; its number."""

    def __init__(self, mark: str) -> None:
        heard, self.signals = os.pipe()
        os.set_blocking(self.signals, False)
        words = [mark, str(os.getpid()), str(heard), time.strftime("%Y-%m-%d_%H-%M-%S")]
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", f"exec(open({__file__!r}).read())", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[heard],
            env={name: value for name, value in os.environ.items() if name != MARK},  # it is nobody's to end
            start_new_session=True,  # Ctrl-C is not meant for it
        )
        os.close(heard)

    def close(self, words: bytes = FAREWELL) -> None:
        with suppress(OSError):
            self.process.communicate(words)
        os.close(self.signals)


@contextmanager
def attended() -> Iterator[None]:
    """What this process starts within does not outlive it, however it ends; and told twice to stop, it ends
    in less than two seconds, whatever it is doing."""
    import threading
    import uuid

    mark = uuid.uuid4().hex
    reaper, outer = Reaper(mark), os.environ.get(MARK)
    os.environ[MARK] = mark
    _attending.append(reaper)
    main = threading.current_thread() is threading.main_thread()
    before = signal.set_wakeup_fd(reaper.signals, warn_on_full_buffer=False) if main else -1
    try:
        yield
    finally:
        if main:
            signal.set_wakeup_fd(before)
        while _leaving:
            _leaving.pop().cancel()
        _attending.remove(reaper)
        if outer is None:
            os.environ.pop(MARK, None)
        else:
            os.environ[MARK] = outer
        reaper.close(DISMISSAL)


_attending: list[Reaper] = []  # in this process, the innermost last
_leaving: list[Any] = []  # timers, until what is attended has ended


def leave_soon(status: int) -> None:
    """End this process with this status unless it has cleared up in a moment; its reaper does the rest.
    Nothing where nobody attends it."""
    import threading

    if _attending:
        _leaving.append(threading.Timer(LEAVING_S, os._exit, [status]))
        _leaving[-1].daemon = True
        _leaving[-1].start()


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
    """Whether a file in the folder of the session that the driver began is open there."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                path = os.readlink(f"/proc/{pid}/fd/{number}")
                session = path.partition("/session_")[2].partition("/")[0]
                if session >= BEGUN and session.endswith(f"_{driver}"):
                    return True
    return False


def tell(pid: int, mark: str, driver: int, number: int) -> None:
    """A signal to the process that is ours, never to another that has its number by now."""
    with suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            if ours(pid, mark, driver):
                signal.pidfd_send_signal(process, number)
        finally:
            os.close(process)


def last_words(driver: int, signals: int) -> bytes:
    """What the driver said before it closed the pipe, or died: a process that it forked may hold the pipe
    open for as long as it likes. A driver that was told twice to stop and goes on is killed here."""
    watched, stdin = select.poll(), sys.stdin.fileno()
    watched.register(stdin, select.POLLIN)
    watched.register(signals, select.POLLIN)
    with suppress(OSError, AttributeError):  # it is gone already; there is no such call on this system
        watched.register(os.pidfd_open(driver), select.POLLIN)
    said, stops = b"", 0
    limit: float | None = None
    while os.getppid() == driver:
        left = None if limit is None else max(0.0, limit - time.monotonic()) * 1000
        ready = dict(watched.poll(left))
        if limit is not None and time.monotonic() >= limit:
            os.kill(driver, signal.SIGKILL)  # still our parent: its number is nobody else's
            break
        if signals in ready:
            heard = os.read(signals, 4096)
            stops += sum(number in STOPPING for number in heard)
            if stops > 1 and limit is None:
                limit = time.monotonic() + PATIENCE_S
            if not heard:
                watched.unregister(signals)
        elif stdin in ready:
            heard = os.read(stdin, 4096)
            if not heard:
                break
            said += heard
        elif ready:
            break
    os.set_blocking(stdin, False)  # it may have said more before it died
    with suppress(BlockingIOError):
        said += os.read(stdin, 4096)
    return said


def main(mark: str, driver: int, signals: int) -> None:
    last = last_words(driver, signals)
    if last == DISMISSAL:
        return
    quiet_s = 0.0 if last == FAREWELL else QUIET_S
    begun = last_seen = time.monotonic()
    told: dict[int, float] = {}  # when each was told to end
    while (now := time.monotonic()) < begun + GRACE_S + INSISTENCE_S:
        left = marked(mark, driver)
        if left:
            last_seen = now
        elif now >= last_seen + quiet_s:
            return
        for pid in left:
            if of_ray(pid) or now >= told.setdefault(pid, now) + GRACE_S:
                tell(pid, mark, driver, signal.SIGKILL)
            elif told[pid] == now:  # once: some take a second time for haste
                tell(pid, mark, driver, signal.SIGTERM)
        time.sleep(LOOK_AGAIN_S)


if IS_THE_PROCESS:
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
