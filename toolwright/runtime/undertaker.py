"""A process that outlives its run by a moment, and ends what the run has left behind.

Ray ends its own processes with the driver, but not all of them when that is killed -9. Every process of a run
carries its mark in its environment; when the pipe from the driver closes, for whatever reason, those that are
still there after a moment are killed. Started as a file of its own, so that it costs no import.
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
INSISTENCE_S = 10.0  # a process that was just being started when its parent was killed comes to light later


class Undertaker:
    def __init__(self, mark: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", f"exec(open({__file__!r}).read())", mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not meant for it
        )

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def marked(mark: str) -> list[int]:
    """Every process of ours that carries the mark, but this one."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if wanted in file.read().split(b"\0") and int(name) != os.getpid():
                found.append(int(name))
    return found


def main(mark: str) -> None:
    sys.stdin.read()  # until the driver closes it, or is no more
    limit = time.monotonic() + GRACE_S
    while marked(mark) and time.monotonic() < limit:
        time.sleep(0.1)
    limit = time.monotonic() + INSISTENCE_S
    while (left := marked(mark)) and time.monotonic() < limit:
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__" and len(sys.argv) == 2:
    main(sys.argv[1])
