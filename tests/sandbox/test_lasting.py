"""A server that is started again at its address when it dies."""

from __future__ import annotations

import contextlib
import os
import signal
import urllib.request

from tests.waiting import wait_until
from toolwright.sandbox.local import lasting_server


def answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{url}/metrics", timeout=5).status == 200)
    except OSError:
        return False


def test_a_server_that_dies_is_back_at_the_same_address() -> None:
    died: list[str] = []
    others = set(_children())  # servers of other tests may live in this process
    with lasting_server("--workers", "1", "--preload", "", died=died.append) as url:
        assert answers(url)
        for time_around in range(2):
            own = [pid for pid in _children() if pid not in others]
            mine = [int(pid) for pid in own if b"toolwright.cli.sandbox" in _command(pid)]
            os.kill(mine[0], signal.SIGKILL)
            wait_until(lambda: len(died) > time_around and answers(url), "it is back")  # noqa: B023
    assert not answers(url)
    assert len(died) == 2
    assert f"the sandbox server {url} (pid {mine[0]}) died with exit code -9" in died[1]


def _children() -> list[str]:
    found = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as file:
            found += file.read().split()
    return found


def _command(pid: str) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
