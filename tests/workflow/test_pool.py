"""The experience pool: one row for everything paid, whoever writes, whatever dies."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from toolwright.failures import UserError
from toolwright.workflow.pool import Experience, ExperiencePool, Payment


def payment(workflow: str, task: int, *, score: float = 1.0, repeat: int = 0) -> Payment:
    return Payment("sim", workflow, f"t{task}", repeat, score, 0.25, 2)


def experience(
    number: int, after: float, *, anchor: str = "a", search: str = "s", before: float = 0.5
) -> Experience:
    return Experience(
        search, number, "sim", anchor, "state", f"edit {number}", "p", f"c{number}", before, after, 4
    )


def test_what_was_paid_is_found_and_is_never_paid_twice(tmp_path: Path) -> None:
    pool = ExperiencePool(tmp_path / "pool.db")
    assert pool.pay([payment("w", 1), payment("w", 2)]) == 2
    assert pool.pay([payment("w", 2, score=0.0), payment("w", 2, repeat=1)]) == 1
    found = pool.paid("sim", "w")
    assert found["t2", 0].score == 1.0
    assert set(found) == {("t1", 0), ("t2", 0), ("t2", 1)}
    assert pool.spent() == pool.spent("sim") == (3, 0.75)
    assert pool.spent("another") == (0, 0.0)


def test_queries_by_state_best_recent_and_contrast(tmp_path: Path) -> None:
    pool = ExperiencePool(tmp_path / "pool.db")
    pool.learn(
        [
            experience(1, 0.4),
            experience(2, 0.9),
            experience(3, 0.7, anchor="b"),
            experience(4, 0.7, anchor="c"),
        ]
    )
    pool.learn([experience(5, 0.6, anchor="b"), experience(6, 0.6, search="other")])
    pairs = pool.contrasts(5)
    assert [(pair.better.number, pair.worse.number) for pair in pairs] == [(2, 1), (3, 5)]


def test_a_replayed_search_writes_the_same_rows(tmp_path: Path) -> None:
    pool = ExperiencePool(tmp_path / "pool.db")
    for _ in range(2):
        pool.learn([experience(1, 0.4), experience(2, 0.9)])
    assert len(pool.by_search("s")) == 2


def test_what_is_pickled_is_its_address(tmp_path: Path) -> None:
    pool = ExperiencePool(tmp_path / "pool.db")
    pool.pay([payment("w", 1)])
    sent = pickle.dumps(pool)
    assert len(sent) < 300
    assert pickle.loads(sent).spent() == (1, 0.25)


def test_a_file_of_another_machine_is_not_silently_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a file on elsewhere.*serve"):
        ExperiencePool(f"elsewhere@{tmp_path}/pool.db")


def _write(address: str, who: int, count: int) -> None:
    pool = ExperiencePool(address)
    for number in range(count):
        pool.pay([payment(f"w{who}", number), payment("shared", number)])
        pool.learn([experience(number, 0.5, search=f"s{who}")])


def test_eight_processes_and_eight_threads_write_at_once(tmp_path: Path) -> None:
    pool = ExperiencePool(tmp_path / "pool.db")
    start = multiprocessing.get_context("spawn").Process
    writers: list[multiprocessing.process.BaseProcess | threading.Thread] = [
        start(target=_write, args=(pool.address, who, 25)) for who in range(8)
    ]
    writers += [threading.Thread(target=_write, args=(pool.address, who, 25)) for who in range(8, 16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert pool.spent()[0] == 16 * 25 + 25
    assert all(len(pool.by_search(f"s{who}")) == 25 for who in range(16))


SCRIPT = """
import sys
from toolwright.workflow.pool import ExperiencePool, Payment
pool = ExperiencePool(sys.argv[1])
for number in range(100000):
    pool.pay([Payment("sim", "w", f"t{number}", 0, 1.0, 0.25, 2)])
    print(number, flush=True)
"""


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    writer = subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(40):
        said = writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.stdout.read().split()
    writer.wait()
    last = int(rest[-1] if rest else said)
    found = ExperiencePool(path).paid("sim", "w")
    assert all((f"t{number}", 0) in found for number in range(last + 1))
    started = time.monotonic()
    ExperiencePool(path).pay([payment("after", 0)])  # no lock is left behind
    assert time.monotonic() - started < 30


def test_a_fork_opens_a_connection_of_its_own(tmp_path: Path) -> None:
    pool = ExperiencePool(tmp_path / "pool.db")
    pool.pay([payment("w", 1)])
    context = multiprocessing.get_context("fork")
    child = context.Process(target=lambda: pool.pay([payment("w", 2)]))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert pool.spent()[0] == 2
