"""What happens when there is too much: of calls, of processes killed, of everything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.waiting import wait_until
from toolwright.sandbox.client import Client
from toolwright.sandbox.local import command, local_server
from toolwright.sandbox.pool import Pool
from toolwright.sandbox.settings import SandboxSettings

from .attack import Piece, served_without
from .conftest import needs_isolation
from .served import Server

pytestmark = needs_isolation


def children(pid: int) -> list[int]:
    """All descendants of a process that are not yet dead."""
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                below = [int(child) for child in (task / "children").read_text().split()]
                waiting += below
                found += below
    return [child for child in found if state(child) not in ("Z", "")]


def state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


class Own:
    """A server of one test, with its process."""

    def __init__(self, *options: str, open_files: int | None = None) -> None:
        def limit() -> None:
            if open_files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

        self.process = subprocess.Popen(
            command("serve", "--port", "0", "--preload", "", *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=limit,
        )
        assert self.process.stdout is not None
        self.server = Server(self.process.stdout.readline().removeprefix("serving on ").strip())

    def __enter__(self) -> Own:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(120)
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_servers_of_one_machine_do_not_all_begin_with_its_first_core() -> None:
    pools = [Pool(SandboxSettings(workers=1), frozenset(), []) for _ in range(64)]
    assert {pool.instructions["first_core"] % 2 for pool in pools} == {0, 1}


def test_a_full_queue_says_when_to_come_back() -> None:
    with (
        Own("--workers", "1", "--runs-per-worker", "1", "--queue-limit", "2") as own,
        ThreadPoolExecutor(2) as pool,
    ):
        with own.server.busy():
            waiting = [pool.submit(own.server.ask, "POST", "/run", {"code": "print(1)"}) for _ in range(2)]
            wait_until(lambda: own.server.status()["queue"] == 2, "two runs are in line")
            assert [own.server.ask("POST", "/run", {"code": "print(1)"})[0] for _ in range(5)] == [429] * 5
        assert [call.result()[0] for call in waiting] == [200] * 2


def test_a_deadline_counts_the_queue() -> None:
    with Own("--workers", "1", "--runs-per-worker", "1") as own:
        with own.server.busy():
            result = own.server.run("print(1)", deadline_s=0.4)
        assert result["status"] == "timeout"
        assert result["reason"].startswith("queue:")
        assert 0.4 <= result["queued_s"] < 30  # it is turned away after 60, deadline or not
        assert own.server.run("import time; time.sleep(5)", deadline_s=0.5)["status"] == "timeout"


def test_a_large_batch_does_not_delay_a_single_call() -> None:
    with Own("--workers", "1", "--runs-per-worker", "1") as own:
        batch = {"runs": [{"code": "import time; time.sleep(0.02)"}] * 150}
        busy = threading.Thread(target=lambda: own.server.post("/run/batch", batch))
        busy.start()
        wait_until(lambda: own.server.status()["queue"] > 100, "the batch is in line")
        own.server.run("print(1)")
        assert own.server.status()["queue"] > 0, "the batch still is"
        busy.join()


@pytest.mark.parametrize("victim", ["sandbox-worker", "sandbox-zygote"])
def test_a_killed_worker_is_replaced_and_its_run_answered(victim: str) -> None:
    with Own("--workers", "1") as own:
        answers: list[dict[str, object]] = []
        running = threading.Thread(
            target=lambda: answers.append(own.server.run("import time; time.sleep(500)", timeout_s=600))
        )
        session = own.server.post("/sessions", {})["id"]
        running.start()
        wait_until(lambda: own.server.status()["running"], "the run is under way")
        for pid in children(own.process.pid):
            if Path(f"/proc/{pid}/comm").read_text().strip() == victim:
                os.kill(pid, signal.SIGKILL)
                break
        running.join(120)
        assert answers
        assert answers[0]["status"] == "killed"
        assert str(answers[0]["reason"]).startswith("worker:")
        code, told = own.server.ask("POST", f"/sessions/{session}/run", {"code": "1"})
        assert code == 410
        assert "worker was killed" in told["error"]
        assert own.server.run("print(1)")["stdout"] == "1\n"
        assert own.server.status()["worker_restarts"] == 1


def test_a_worker_that_hangs_is_killed() -> None:
    impatient = Piece(
        "patience",
        server="from toolwright.sandbox import limits, pool; limits._WALL_GRACE_S = pool._PATIENCE_S = 0.5",
    )
    with served_without(frozenset({impatient}), "--workers", "1", "--preload", "") as server:
        worker = next(
            pid for pid in children(server.pid) if Path(f"/proc/{pid}/comm").read_text() == "sandbox-worker\n"
        )
        os.kill(worker, signal.SIGSTOP)
        result = server.run("print(1)", timeout_s=0.5)
        assert result["status"] == "killed"
        assert result["reason"].startswith("worker:")
        assert server.run("print(1)")["stdout"] == "1\n"


def test_a_second_sigterm_does_not_wait() -> None:
    own = Own("--workers", "1", "--drain-s", "500")
    threading.Thread(target=_run_and_ignore, args=(own,), daemon=True).start()
    wait_until(lambda: own.server.status()["running"], "the run is under way")
    own.process.terminate()
    wait_until(lambda: not takes_calls(own.server), "the first is heard: two at once would be one")
    assert own.process.poll() is None
    own.process.terminate()
    assert own.process.wait(120) == 0


def takes_calls(server: Server) -> bool:
    try:
        return server.ask("GET", "/health")[0] == 200
    except OSError:
        return False


def test_sigterm_drains_and_leaves_nothing() -> None:
    own = Own("--workers", "2")
    answers: list[dict[str, object]] = []
    running = threading.Thread(
        target=lambda: answers.append(own.server.run("import time; time.sleep(1); print('done')"))
    )
    running.start()
    own.server.post("/sessions", {})
    wait_until(lambda: own.server.status()["running"], "the run is under way")
    family = children(own.process.pid)
    assert len(family) >= 4
    own.process.terminate()
    assert own.process.wait(120) == 0
    running.join()
    assert answers[0]["stdout"] == "done\n"
    wait_until(lambda: all(state(pid) in ("Z", "") for pid in family), "nobody is left")


def test_a_server_that_is_killed_leaves_no_orphans() -> None:
    own = Own("--workers", "2")
    threading.Thread(target=_run_and_ignore, args=(own,), daemon=True).start()
    wait_until(lambda: own.server.status()["running"], "the run is under way")
    family = children(own.process.pid)
    own.process.kill()
    own.process.wait()
    wait_until(lambda: all(state(pid) in ("Z", "") for pid in family), "nobody is left")


def _run_and_ignore(own: Own) -> None:
    with contextlib.suppress(Exception):
        own.server.run("import os, time\nos.fork()\ntime.sleep(500)", timeout_s=600)


def test_a_run_ends_when_its_client_hangs_up() -> None:
    with Own("--workers", "1", "--runs-per-worker", "1") as own:
        with own.server.busy():
            pass
        assert own.server.run("print(1)")["stdout"] == "1\n"


def test_other_addresses_need_a_token() -> None:
    refused = subprocess.run(
        [*command("serve", "--host", "0.0.0.0", "--port", "0")], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode != 0
    assert "token" in refused.stderr
    with local_server("--host", "0.0.0.0", "--token", "s3cret", "--workers", "1", "--preload", "") as url:
        url = url.replace("0.0.0.0", "127.0.0.1")
        assert Server(url).ask("POST", "/run", {"code": "1"})[0] == 401
        assert Server(url, "wrong").ask("GET", "/status")[0] == 401
        assert Server(url).ask("GET", "/health")[0] == 200
        assert Server(url, "s3cret").run("print(1)")["stdout"] == "1\n"


@pytest.fixture(scope="module")
def pressed() -> Iterator[Own]:
    """A server that may have few files open."""
    with Own("--workers", "1", open_files=300) as own:
        yield own


@contextlib.contextmanager
def grows_by_less_than(megabytes: float, pid: int) -> Iterator[None]:
    """Of the most memory that the process has at any time meanwhile."""

    def peak() -> float:
        status = Path(f"/proc/{pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    Path(f"/proc/{pid}/clear_refs").write_text("5")  # forgets what it was before
    before = peak()
    yield
    assert peak() < before + megabytes


def connected(server: Server) -> socket.socket:
    place = urlsplit(server.url)
    return socket.create_connection((place.hostname, place.port), 60)


def test_an_endless_request_header_is_not_kept_in_memory(pressed: Own) -> None:
    with grows_by_less_than(30, pressed.process.pid):
        for _ in range(4):
            with connected(pressed.server) as attacker, contextlib.suppress(ConnectionError):
                attacker.sendall(b"GET /status HTTP/1.1\r\nendless: ")
                for _ in range(1000):  # 64 MB, were they taken
                    attacker.sendall(b"x" * 65536)
        assert pressed.server.run("print(1)")["stdout"] == "1\n"


def test_half_requests_up_to_the_limit_of_open_files_lock_nobody_out(pressed: Own) -> None:
    head = b"POST /run HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(connected(pressed.server)).sendall(head + b"content-length: 9\r\n\r\n{")
        assert pressed.server.ask("GET", "/health")[0] == 200
        assert pressed.server.run("print(1)")["stdout"] == "1\n"
        assert len(os.listdir(f"/proc/{pressed.process.pid}/fd")) < 300


def test_a_batch_of_thousands_that_are_refused_keeps_nobody_waiting(pressed: Own) -> None:
    """Health was answered before it or after it, and never in between."""
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(pressed.server.post, "/run/batch", {"runs": [{"code": 5}] * 50_000})
        answered = 0
        while not batch.done():
            assert pressed.server.ask("GET", "/health")[0] == 200
            answered += not batch.done()
        assert answered > 5
        results = batch.result()["results"]
        assert len(results) == 50_000
        assert all(result["reason"].startswith("refused: code:") for result in results)


def test_a_body_of_millions_of_values_is_refused(pressed: Own) -> None:
    with grows_by_less_than(200, pressed.process.pid):  # the values would take 700
        code, told = pressed.server.ask("POST", "/run/batch", b'{"runs": [' + b"[]," * 10_000_000 + b"[]]}")
        assert code == 413
        assert "1,000,000 values" in told["error"]


GOOD = [
    ("print(sum(range({n})))", lambda n: f"{sum(range(n))}\n"),
    ("import json; print(json.dumps({{'n': {n}}}))", lambda n: json.dumps({"n": n}) + "\n"),
    ("print(input())", None),
    ("import re; print(re.sub('a', 'b', 'a' * ({n} % 7)))", lambda n: "b" * (n % 7) + "\n"),
]
SHORT, LONG = 0.1, 90.0  # LONG: more than a loaded machine needs, so that the verdict is the code's own
HOSTILE = [
    ("1/0", LONG, "error"),
    ("import os; os._exit(9)", LONG, "error"),
    ("while True: pass", SHORT, "timeout"),
    (
        "import signal, time\nsignal.pthread_sigmask(0, range(1, 65))\nwhile True: time.sleep(1)",
        SHORT,
        "timeout",
    ),
    ("x = bytearray(5 << 30)", LONG, "memory"),
    ("x = []\nwhile True: x.append(bytearray(20 << 20))", LONG, "memory"),
    ("import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", SHORT, "timeout"),
    ("import os\nfor _ in range(99):\n  if os.fork() == 0: os._exit(0)", LONG, "error"),
    ("while True: print('y' * 100000)", LONG, "killed"),
    ("import os; os.write(1, bytes(range(256)))", LONG, "ok"),
    ("import os; os.kill(-1, 9)", LONG, "error"),
    ("import os; os.killpg(0, 9)", LONG, "ok"),
    ("import os\nfor n in range(3, 64):\n  try: os.write(n, b'junk')\n  except OSError: pass", LONG, "ok"),
    ("import os\nif os.fork() == 0:\n  os.setsid()\n  while True: pass", LONG, "ok"),
    ("open('f', 'wb').write(bytes(70 << 20))", LONG, "error"),
    ("def f(): f()\nf()", LONG, "error"),
    ("import ctypes; ctypes.string_at(0)", LONG, "error"),
]


async def mixed(url: str, count: int) -> None:
    """Good and hostile runs side by side; each is answered once and as it should be."""
    draw = random.Random(1)
    answered = 0

    async def one(client: Client, number: int) -> None:
        nonlocal answered
        if draw.random() < 0.8:
            code, expected = draw.choice(GOOD)
            result = await client.run(
                code.format(n=number), stdin=f"line {number}", timeout_s=LONG, timeout=600
            )
            wanted = expected(number) if expected else f"line {number}\n"
            assert (result.status, result.stdout) == ("ok", wanted), (code, result)
        else:
            code, limit_s, status = draw.choice(HOSTILE)
            result = await client.run(code, timeout_s=limit_s, timeout=600)
            assert result.status == status, (code, result.status, result.reason, result.stderr[-300:])
        answered += 1

    async with Client(url, batch_size=1, concurrency=64, max_retries=0) as client:
        gate = asyncio.Semaphore(64)

        async def gated(number: int) -> None:
            async with gate:
                await one(client, number)

        await asyncio.gather(*(gated(number) for number in range(count)))
    assert answered == count


def counted(pid: int) -> tuple[int, int]:
    """Processes of a server and all below it, and their descriptors."""
    while True:
        with contextlib.suppress(FileNotFoundError):  # one of them has just ended
            family = [pid, *children(pid)]
            return len(family), sum(len(os.listdir(f"/proc/{one}/fd")) for one in family)


def settled(pid: int) -> tuple[int, int]:
    """The same, when nothing comes or goes any more after the last call."""
    looks = [counted(pid)]
    while len(looks) < 5 or len({*looks[-5:]}) > 1:
        time.sleep(0.3)
        looks.append(counted(pid))
    return looks[-1]


def megabytes(pid: int) -> float:
    family = [pid, *children(pid)]
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in family)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def storm(count: int, growth_mb: float) -> None:
    with Own("--workers", "2", "--queue-limit", "100000", "--queue-timeout-s", "600") as own:
        asyncio.run(mixed(own.server.url, 100))  # whatever is made on first use
        pid = own.process.pid
        before, before_mb = settled(pid), megabytes(pid)
        asyncio.run(mixed(own.server.url, count))
        wait_until(lambda: settled(pid) == before, f"{before} processes and descriptors are left again")
        assert megabytes(pid) < before_mb + growth_mb
        assert own.server.status()["worker_restarts"] == 0


def test_400_mixed_runs_leave_everything_as_it_was() -> None:
    storm(400, growth_mb=20)


@pytest.mark.slow
def test_10000_mixed_runs_leave_everything_as_it_was() -> None:
    storm(10_000, growth_mb=30)


def flat_memory(calls: int, growth_mb: float) -> None:
    with Own("--workers", "2") as own:

        async def go(count: int) -> None:
            async with Client(own.server.url, batch_size=64, concurrency=4) as client:
                for _ in range(0, count, 500):
                    results = await asyncio.gather(*(client.run("print(1+1)") for _ in range(500)))
                    assert {result.stdout for result in results} == {"2\n"}

        asyncio.run(go(1000))
        pid = own.process.pid
        before, before_mb = settled(pid), megabytes(pid)
        asyncio.run(go(calls))
        wait_until(lambda: settled(pid) == before, f"{before} processes and descriptors are left again")
        assert megabytes(pid) < before_mb + growth_mb


@pytest.mark.slow
def test_memory_is_flat_over_25000_calls() -> None:
    flat_memory(25_000, growth_mb=10)
