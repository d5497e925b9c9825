"""A process that outlives its run by a moment, and ends what the run has left behind.

Ray ends its own processes with the driver, but not all of them when that is killed -9. Every process of a run
carries its mark in its environment; when the pipe from the driver closes, for whatever reason, those that are
still there after a moment are killed. A driver that says farewell first has ended its own; of one that did
not, anything may still be on its way. Started as a file of its own, so that it costs no import.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

MARK = "TOOLWRIGHT_RUN"
GRACE_S = 3.0  # for Ray to do it itself
INSISTENCE_S = 30.0  # in all, for those that come to light one after the other
# A process that is just being started shows no environment for a moment: that there is none has to last.
QUIET_S = 2.0
FAREWELL = b"ended"


class Undertaker:
    def __init__(self, mark: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", f"exec(open({__file__!r}).read())", mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not meant for it
        )

    def close(self) -> None:
        with suppress(OSError):  # it may have been killed itself
            self.process.communicate(FAREWELL)


def marked(mark: str) -> list[int]:
    """Every process of ours that carries the mark, but this one."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if wanted in file.read().split(b"\0") and int(name) != os.getpid():
                found.append(int(name))
    return found


def main(mark: str) -> None:
    told = sys.stdin.buffer.read()  # until the driver closes it, or is no more
    quiet_s = 0.0 if told == FAREWELL else QUIET_S
    begun = last_seen = time.monotonic()
    while (now := time.monotonic()) < begun + GRACE_S + INSISTENCE_S:
        left = marked(mark)
        if left:
            last_seen = now
        elif now >= last_seen + quiet_s:
            return
        if now > begun + GRACE_S:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__" and len(sys.argv) == 2:
    main(sys.argv[1])
