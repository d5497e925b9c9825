"""How fast `toolwright view` opens a large run in a terminal, and what it holds in memory.

    python benchmarks/terminal.py [--attempts 100000] [--tokens 2000] [--steps 100] [--folder FOLDER]

It makes the run of benchmarks/ui.py (about 3 GB, once: FOLDER is used again if it is there) and starts the
command in a terminal of its own, as a user does. `opened` is when the table of steps stands on the screen
with the figures of the newest steps, from the start of the process; `read` when the small columns of all
steps are in; `filtered` how long a filter over all attempts takes, `searched` a word in all texts, `attempt`
from a table to the turns of an attempt. Memory is the peak of the resident set. `waited_s` is the part of
`opened` that the process waited for a core, by the kernel's account: what other work on the machine cost.
`cpu_s` is the processor time of all its threads until then.
Medians, with the smallest in brackets.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import signal
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

from ui import make_run

LIMITS = {"opened_s": 1.0, "filtered_s": 1.0, "attempt_s": 0.3, "memory_mb": 500.0}
PATIENCE_S = 120


class Terminal:
    """A command in a pseudo-terminal of 120 × 40 cells."""

    def __init__(self, *words: str) -> None:
        self.started = time.perf_counter()
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(sys.executable, [sys.executable, "-m", "toolwright", *words])
        import fcntl
        import termios

        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.seen = ""

    def until(self, pattern: str) -> float:
        """Wait until this was written since the last key, and return the seconds from the start."""
        end = time.perf_counter() + PATIENCE_S
        while not re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen)):
            if time.perf_counter() > end:
                raise SystemExit(f"{pattern!r} did not come; the last that came: {self.seen[-400:]!r}")
            if select.select([self.file], [], [], 0.5)[0]:
                self.seen += os.read(self.file, 65536).decode(errors="replace")
        return time.perf_counter() - self.started

    def settle(self) -> None:
        """Wait until nothing more is drawn but a cursor, which blinks twice a second."""
        while select.select([self.file], [], [], 0.3)[0]:
            os.read(self.file, 65536)

    def press(self, keys: str) -> float:
        """Returns when they were pressed."""
        self.seen = ""
        os.write(self.file, keys.encode())
        return time.perf_counter() - self.started

    def memory_mb(self) -> float:
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(next(iter(re.findall(r"VmHWM:\s+(\d+) kB", text)))) / 1024

    def waited_s(self) -> float:
        """Seconds that its main thread was ready and had no core."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9

    def cpu_s(self) -> float:
        """Processor time of all its threads so far."""
        threads = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

    def close(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)


def measure(run: Path, *, attempts: int) -> dict[str, float]:
    terminal = Terminal("view", str(run))
    found = {"opened_s": terminal.until(r"ended by[\s\S]*eos \d+")}
    found["waited_s"], found["cpu_s"] = terminal.waited_s(), terminal.cpu_s()
    found["read_s"] = terminal.until(f"{attempts:,} attempts")
    terminal.press("a")
    terminal.until(r"question")
    terminal.press("/")
    terminal.settle()
    pressed = terminal.press("reward<0.5 stop=length\r")
    found["filtered_s"] = terminal.until(r"filter: reward<0.5 stop=length") - pressed
    pressed = terminal.press("\r")
    found["attempt_s"] = terminal.until(r"policy") - pressed
    terminal.press("q")
    terminal.settle()
    terminal.press("/")
    terminal.settle()
    terminal.press("\x15")
    terminal.settle()
    pressed = terminal.press("unfindable\r")
    found["searched_s"] = terminal.until(r" 0 attempts  filter: unfindable {6,}") - pressed
    found["memory_mb"] = terminal.memory_mb()
    terminal.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--attempts", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="where the large run is made, and found again")
    parser.add_argument("--times", type=int, default=3, help="tries, each in a process of its own")
    arguments = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory() as own:
        folder = arguments.folder or Path(own)
        run = make_run(folder, attempts=arguments.attempts, tokens=arguments.tokens, steps=arguments.steps)
        tries = [measure(run, attempts=arguments.attempts) for _ in range(arguments.times)]
    for name in tries[0]:
        values = [one[name] for one in tries]
        limit = f"   at most {LIMITS[name]:g}" if name in LIMITS else ""
        print(f"{name:<12} {statistics.median(values):8.2f} ({min(values):.2f}){limit}")


if __name__ == "__main__":
    main()
