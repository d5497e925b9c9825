"""A process that outlives its run by a moment, and ends what the run has left behind.

Ray ends some of its processes with a driver that is killed -9, and leaves the others to notice. Every process
of a run carries its mark in its environment. When the driver is no more, for whatever reason, Ray's own that
are still there are killed, since they have nothing to save and pay no heed to less; others, a tool's server
say, are told to end, and killed if they have not after a moment. A driver that says farewell first has ended
its own; of one that did not, anything may still be on its way. Started as a file of its own, so that it costs
no import.
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

    def close(self) -> None:
        with suppress(OSError):  # it may have been killed itself
            self.process.communicate(FAREWELL)


def carries(pid: int, mark: str) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return f"{MARK}={mark}".encode() in file.read().split(b"\0")
    return False


def marked(mark: str) -> list[int]:
    """Every process of ours that carries the mark, but this one."""
    there = os.listdir("/proc") if os.path.isdir("/proc") else []  # elsewhere Ray is left to itself
    return [pid for pid in map(int, filter(str.isdigit, there)) if pid != os.getpid() and carries(pid, mark)]


def of_ray(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read(5) == b"ray::"
    return False


def tell(pid: int, mark: str, number: int) -> None:
    """A signal to the process that carries the mark, never to another that has its number by now."""
    with suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            if carries(pid, mark):
                signal.pidfd_send_signal(process, number)
        finally:
            os.close(process)


def last_words(driver: int) -> bytes:
    """What the driver said before it closed the pipe, or died: a process that it forked may hold the pipe
    open for as long as it likes."""
    said, watched = b"", select.poll()
    watched.register(sys.stdin.fileno(), select.POLLIN)
    with suppress(OSError, AttributeError):  # it is gone already; there is no such call on this system
        watched.register(os.pidfd_open(driver), select.POLLIN)
    while os.getppid() == driver:
        if sys.stdin.fileno() not in dict(watched.poll()):
            break
        heard = os.read(sys.stdin.fileno(), 64)
        if not heard:
            break
        said += heard
    return said


def main(mark: str, driver: int) -> None:
    quiet_s = 0.0 if last_words(driver) == FAREWELL else QUIET_S
    begun = last_seen = time.monotonic()
    told: dict[int, float] = {}  # when each was told to end
    while (now := time.monotonic()) < begun + GRACE_S + INSISTENCE_S:
        left = marked(mark)
        if left:
            last_seen = now
        elif now >= last_seen + quiet_s:
            return
        for pid in left:
            if of_ray(pid) or now >= told.setdefault(pid, now) + GRACE_S:
                tell(pid, mark, signal.SIGKILL)
            elif told[pid] == now:  # once: some take a second time for haste
                tell(pid, mark, signal.SIGTERM)
        time.sleep(LOOK_AGAIN_S)


if __name__ == "__main__" and len(sys.argv) == 3:
    main(sys.argv[1], int(sys.argv[2]))
