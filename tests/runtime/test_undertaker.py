"""What a killed driver leaves behind is ended, also what comes to light later; an orderly end is quick."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from toolwright.runtime.undertaker import GRACE_S, MARK, Undertaker, marked

from .clusters import ROOT

DRIVER = """\
import os, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from toolwright.runtime.undertaker import MARK, Undertaker

undertaker = Undertaker(sys.argv[2])
marked = {**os.environ, MARK: sys.argv[2]}
late = "import subprocess, sys, time; time.sleep(1); subprocess.Popen([sys.executable, '-ISc', sys.argv[1]])"
for code in ("import time; time.sleep(600)", late):
    subprocess.Popen([sys.executable, "-ISc", code, "import time; time.sleep(601)"], env=marked)
print(undertaker.process.pid, flush=True)
time.sleep(600)
"""


def test_what_a_killed_driver_started_is_ended() -> None:
    mark = f"test{os.getpid()}a"
    line = [sys.executable, "-c", DRIVER, str(ROOT), mark]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        undertaker = int(driver.stdout.readline())
        assert marked(mark)
        driver.send_signal(signal.SIGKILL)
    limit = time.monotonic() + 60
    while marked(mark) or Path(f"/proc/{undertaker}/environ").exists():
        assert time.monotonic() < limit, "something is left"
        time.sleep(0.1)


def test_a_farewell_with_nothing_left_takes_no_time() -> None:
    undertaker = Undertaker(f"test{os.getpid()}b")
    started = time.monotonic()
    undertaker.close()
    assert time.monotonic() - started < GRACE_S
    assert undertaker.process.returncode == 0


def test_it_does_not_touch_what_carries_another_mark() -> None:
    mark = f"test{os.getpid()}c"
    environment = {**os.environ, MARK: f"{mark}d"}
    other = subprocess.Popen([sys.executable, "-ISc", "import time; time.sleep(60)"], env=environment)
    try:
        assert other.pid not in marked(mark)
        assert other.pid in marked(f"{mark}d")
    finally:
        other.kill()
        other.wait()
