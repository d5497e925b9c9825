"""The driver as a process: started anywhere, stopped by anything, and nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import metrics, rollouts
from toolwright.trainer.loop import train

from .clusters import PATIENT, ROOT, configured, told, words

pytestmark = pytest.mark.xdist_group("ray")

# `-m toolwright` would find whichever checkout is installed; this one is meant.
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from toolwright.cli import main; sys.exit(main())"
REWARD = """\
import beside


def score(solution_str, ground_truth):
    where = beside.__file__
    return {"score": float(solution_str[:1] == ground_truth), "sent": float(where.startswith(%r) is False)}
"""


@contextmanager
def driver(*line: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """From a foreign directory, with nothing on PYTHONPATH."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RAY_ADDRESS")}
    process = subprocess.Popen(
        [sys.executable, "-c", START, *line],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def descendants(pid: int) -> set[tuple[int, str]]:
    """Every process of the driver's, each with the moment it started: a number alone is soon another's."""
    found, todo = set(), [pid]
    while todo:
        parent = todo.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                children = {int(child) for child in task.read_text().split()}
            except OSError:
                continue
            found |= children
            todo += children
    return {(child, status[1]) for child in found if (status := state(child))}


def state(pid: int) -> tuple[str, str] | None:
    """Whether it sleeps, runs or is a zombie, and when it started; None of one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], fields[19]


def alive(processes: set[tuple[int, str]]) -> dict[int, str]:
    """Those still there, and what each of them is."""
    there = {}
    for pid, started in processes:
        status = state(pid)
        if status and status[0] != "Z" and status[1] == started:
            with suppress(OSError):
                there[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:120]
    return there


def wait_until(condition: Any, what: str, limit_s: float = 240, told: Any = lambda: "") -> None:
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, f"waited {limit_s} s for {what} {told()}"
        time.sleep(0.1)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A user's folder: a reward file and the module beside it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "beside.py").write_text("")
    (folder / "reward.py").write_text(REWARD % str(folder))
    return folder


def test_user_code_reaches_workers_from_a_foreign_directory(mine: Path, tmp_path: Path) -> None:
    own = words(*PATIENT, "run.name=x", f"reward.function={mine}/reward.py:score", "train.steps=1")
    (tmp_path / "elsewhere").mkdir()
    with driver("train", *own, cwd=tmp_path / "elsewhere") as process:
        out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    assert [row["step"] for row in metrics(tmp_path / "elsewhere/runs/x")] == [0, 1]


def test_user_code_is_sent_to_a_cluster_that_is_joined(cluster: Any, mine: Path, tmp_path: Path) -> None:
    own = words(*PATIENT, "run.name=x", f"reward.function={mine}/reward.py:score", "train.steps=1")
    (tmp_path / "elsewhere").mkdir()
    with driver("train", *own, f"runtime.address={cluster.address}", cwd=tmp_path / "elsewhere") as process:
        out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    row = metrics(tmp_path / "elsewhere/runs/x")[1]
    assert row["reward/sent"] == 1.0, "the module was imported from the driver's folder"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_behind_and_the_run_goes_on_exactly(number: int, tmp_path: Path) -> None:
    own = words(*PATIENT, "run.name=x", "checkpoint.every=1", "train.steps=60", "algorithm.kl.where=loss")
    run = tmp_path / "runs/x"
    shared = set(os.listdir("/dev/shm"))
    with driver("train", *own, cwd=tmp_path) as process:
        wait_until(
            lambda: (run / "checkpoints/step_2").exists() or process.poll() is not None, "two steps", 400
        )
        assert process.poll() is None, process.communicate()
        children = descendants(process.pid)
        assert len(children) > 5
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == (130 if number == signal.SIGINT else -number), out + err
    wait_until(
        lambda: not alive(children), "the processes of the run to end", 60, told=lambda: alive(children)
    )
    assert set(os.listdir("/dev/shm")) <= shared
    if number == signal.SIGKILL:
        done = metrics(run)[-1]["step"]
        steps = f"train.steps={done + 2}"
        with driver(
            "train", "run.name=x", "run.resume=true", steps, "runtime.name=local", cwd=tmp_path
        ) as process:
            out, err = process.communicate(timeout=400)
        assert process.returncode == 0, out + err
        whole = train(
            configured(f"run.dir={tmp_path}", "run.name=whole", "algorithm.kl.where=loss", steps),
            command=["toolwright"],
        )
        for mine, theirs in zip(told(metrics(whole)), told(metrics(run)), strict=True):
            assert theirs == pytest.approx(mine, abs=1e-6)
        assert sorted(rollouts(whole)) == sorted(rollouts(run))
