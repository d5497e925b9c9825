"""A process that outlives its run by a moment, and ends what the run has left behind.

Ray ends some of its processes with a driver that is killed -9, and leaves the others to notice. Every
process of a run carries its mark in its environment; some of Ray's write their title over it, and are known
by the log that they hold open in the session's folder. When the driver is no more, for whatever reason, Ray's
own that are still there are killed, since they have nothing to save and pay no heed to less; others, a
tool's server say, are told to end, and killed if they have not after a moment. A driver that says farewell
first has ended its own; of one that did not, anything may still be on its way. Started as a file of its
own, so that it costs no import.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

MARK = "TOOLWRIGHT_RUN"
GRACE_S = 3.0  # between being told to end and being killed
INSISTENCE_S = 30.0  # in all, for those that come to light one after the other
# A process that is just being started shows no environment for a moment: that there is none has to last.
QUIET_S = 2.0
LOOK_AGAIN_S = 0.1
FAREWELL = b"ended"


class Undertaker:
    def __init__(self, mark: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", f"exec(open({__file__!r}).read())", mark, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not meant for it
        )

    def watch(self, session: str) -> None:
        """Of Ray's session, once that has begun: its folder."""
        with suppress(OSError):  # it may have been killed itself
            assert self.process.stdin is not None
            self.process.stdin.write(session.encode() + b"\n")
            self.process.stdin.flush()

    def close(self) -> None:
        with suppress(OSError):
            self.process.communicate(FAREWELL)


def carries(pid: int, mark: str) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return f"{MARK}={mark}".encode() in file.read().split(b"\0")
    return False


def marked(mark: str, session: str = "") -> list[int]:
    """Every process of ours that carries the mark, or is Ray's and of its session; but this one."""
    there = os.listdir("/proc") if os.path.isdir("/proc") else []  # elsewhere Ray is left to itself
    return [
        pid for pid in map(int, filter(str.isdigit, there)) if pid != os.getpid() and ours(pid, mark, session)
    ]


def ours(pid: int, mark: str, session: str) -> bool:
    return carries(pid, mark) or (bool(session) and of_ray(pid) and holds(pid, session))


def of_ray(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read(5) == b"ray::"
    return False


def holds(pid: int, folder: str) -> bool:
    """Whether a file in there is open."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{number}").startswith(f"{folder}/"):
                    return True
    return False


def tell(pid: int, mark: str, session: str, number: int) -> None:
    """A signal to the process that is ours, never to another that has its number by now."""
    with suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            if ours(pid, mark, session):
                signal.pidfd_send_signal(process, number)
        finally:
            os.close(process)


def last_words(driver: int) -> bytes:
    """What the driver said before it closed the pipe, or died: a process that it forked may hold the pipe
    open for as long as it likes."""
    watched = select.poll()
    watched.register(sys.stdin.fileno(), select.POLLIN)
    with suppress(OSError, AttributeError):  # it is gone already; there is no such call on this system
        watched.register(os.pidfd_open(driver), select.POLLIN)
    said = b""
    while os.getppid() == driver:
        if sys.stdin.fileno() not in dict(watched.poll()):
            break
        heard = os.read(sys.stdin.fileno(), 4096)
        if not heard:
            break
        said += heard
    os.set_blocking(sys.stdin.fileno(), False)  # it may have said more before it died
    with suppress(BlockingIOError):
        said += os.read(sys.stdin.fileno(), 4096)
    return said


def main(mark: str, driver: int) -> None:
    *told_before, last = last_words(driver).split(b"\n")
    session = told_before[0].decode() if told_before else ""
    quiet_s = 0.0 if last == FAREWELL else QUIET_S
    begun = last_seen = time.monotonic()
    told: dict[int, float] = {}  # when each was told to end
    while (now := time.monotonic()) < begun + GRACE_S + INSISTENCE_S:
        left = marked(mark, session)
        if left:
            last_seen = now
        elif now >= last_seen + quiet_s:
            return
        for pid in left:
            if of_ray(pid) or now >= told.setdefault(pid, now) + GRACE_S:
                tell(pid, mark, session, signal.SIGKILL)
            elif told[pid] == now:  # once: some take a second time for haste
                tell(pid, mark, session, signal.SIGTERM)
        time.sleep(LOOK_AGAIN_S)


if __name__ == "__main__" and len(sys.argv) == 3:
    main(sys.argv[1], int(sys.argv[2]))
