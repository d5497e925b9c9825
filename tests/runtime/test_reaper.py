"""What a killed driver leaves behind is ended, also what comes to light later; an orderly end is quick."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.waiting import alive, wait_until
from toolwright.runtime.reaper import GRACE_S, MARK, Reaper, folder_prefix, marked, of_ray

from .clusters import ROOT

# A driver, what it starts with its mark, and a fork of its own without one, which holds the pipe open.
DRIVER = """\
import os, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from toolwright.runtime.reaper import MARK, Reaper

reaper = Reaper(sys.argv[2])
fork = os.fork()
if fork == 0:
    time.sleep(600)
marked = {**os.environ, MARK: sys.argv[2]}
sleeps = "import time; time.sleep(600)"
deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); "
late = "import subprocess, sys, time; time.sleep(1); subprocess.Popen([sys.executable, '-ISc', sys.argv[1]])"
for code in (sleeps, deaf + sleeps, deaf + late):
    subprocess.Popen([sys.executable, "-ISc", code, sleeps], env=marked)
print(reaper.process.pid, fork, flush=True)
time.sleep(600)
"""


def test_processes_of_a_killed_driver_are_ended() -> None:
    """What ignores that it is told to end, and what comes to light later; though the pipe is held open. The
    folders that it worked in are removed."""
    mark = f"test{os.getpid()}a"
    folder, other = (tempfile.mkdtemp(prefix=folder_prefix(m)) for m in (mark, f"{mark}b"))
    line = [sys.executable, "-c", DRIVER, str(ROOT), mark]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        said = sorted(driver.stdout.readline().split() for _ in range(3))
        assert said[1:] == [["deaf"], ["deaf"]]
        reaper, fork = map(int, said[0])
        assert marked(mark)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        try:
            limit = time.monotonic() + 60
            while marked(mark) or alive(reaper):
                assert time.monotonic() < limit, "something is left"
                time.sleep(0.1)
            assert alive(fork), "what carries no mark is nobody's to end"
            assert not os.path.exists(folder)
            assert os.path.exists(other), "of another run"
        finally:
            os.kill(fork, signal.SIGKILL)
            os.rmdir(other)


# A driver; of Ray's session a process that wrote its title over its mark, and somebody's that reads there.
SESSION = """\
import os, signal, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from toolwright.runtime.reaper import Reaper

reaper = Reaper(sys.argv[2])
session = time.strftime(f"{sys.argv[3]}/session_%Y-%m-%d_%H-%M-%S_000000_{os.getpid()}")
os.mkdir(session)
os.kill(reaper.process.pid, signal.SIGSTOP)  # it is slow to begin, as on a busy machine
time.sleep(1.1)
os.kill(reaper.process.pid, signal.SIGCONT)
pids = []
for title in ("ray::DashboardAgent", "tail"):
    with open(session + "/logs", "a") as log:
        line = ["bash", "-c", f"exec -a {title} sleep 600"]
        pids.append(subprocess.Popen(line, stdin=log, stdout=subprocess.DEVNULL).pid)
print(reaper.process.pid, *pids, flush=True)
time.sleep(600)
"""


def test_a_ray_process_without_a_mark_is_found_by_its_session(tmp_path: Path) -> None:
    line = [sys.executable, "-c", SESSION, str(ROOT), f"test{os.getpid()}s", str(tmp_path)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        reaper, agent, reader = map(int, driver.stdout.readline().split())
        wait_until(lambda: of_ray(agent), "it has its title")
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        try:
            wait_until(lambda: not alive(agent) and not alive(reaper), "both have ended", 60)
            assert alive(reader), "who only looks into the folder is nobody's to end"
        finally:
            os.kill(reader, signal.SIGKILL)


def test_a_farewell_with_nothing_left_takes_no_time() -> None:
    reaper = Reaper(f"test{os.getpid()}b")
    started = time.monotonic()
    reaper.close()
    assert time.monotonic() - started < GRACE_S
    assert reaper.process.returncode == 0


def test_the_reaper_spares_processes_of_another_run() -> None:
    mark = f"test{os.getpid()}c"
    environment = {**os.environ, MARK: f"{mark}d"}
    other = subprocess.Popen([sys.executable, "-ISc", "import time; time.sleep(60)"], env=environment)
    try:
        assert other.pid not in marked(mark)
        assert other.pid in marked(f"{mark}d")
    finally:
        other.kill()
        other.wait()
