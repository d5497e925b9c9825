"""The driver as a process: started anywhere, stopped by anything, and nothing of it stays behind."""

from __future__ import annotations

import os
import shutil
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
from tests.trainer.test_interrupt import waits
from toolwright.learner import checkpoints
from toolwright.runtime.reaper import marked, of_ray
from toolwright.trainer.loop import train

from .clusters import PATIENT, ROOT, comparable, configured, words

pytestmark = pytest.mark.xdist_group("ray runs")

# `-m toolwright` would find whichever checkout is installed; this one is meant.
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from toolwright.cli import main; sys.exit(main())"
REWARD = """\
import beside


def score(solution_str, ground_truth):
    where = beside.__file__
    return {"score": float(solution_str[:1] == ground_truth), "sent": float(where.startswith(%r) is False)}
"""
TOOL = """\
from herald.words import same


def echo(text: str) -> str:
    \"\"\"Says what it is told.

    Args:
        text: what to say
    \"\"\"
    return same(text) + "!"
"""


@contextmanager
def driver(*line: str, cwd: Path, site: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """From a foreign directory, with nothing on PYTHONPATH. `site`: where it has packages of its own."""
    start = f"import site; site.addsitedir({str(site)!r}); {START}" if site else START
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RAY_ADDRESS")}
    process = subprocess.Popen(
        [sys.executable, "-c", start, *line],
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


def wait_until(condition: Any, what: str, limit_s: float = 240, detail: Any = lambda: "") -> None:
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, f"waited {limit_s} s for {what} {detail()}"
        time.sleep(0.1)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A user's folder: a reward file and the module beside it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "beside.py").write_text("")
    (folder / "reward.py").write_text(REWARD % str(folder))
    return folder


def editable(folder: Path) -> Path:
    """A place for packages, in which one is installed in editable mode: a line that names its checkout."""
    source, site = folder / "checkout/src/herald", folder / "site"
    source.mkdir(parents=True)
    site.mkdir()
    (source / "__init__.py").write_text("")
    (source / "words.py").write_text("def same(text):\n    return text\n")
    (source / "tools.py").write_text(TOOL)
    (site / "herald.pth").write_text(f"{source.parent}\n")
    return site


def test_user_code_is_sent_to_a_cluster_that_is_joined(cluster: Any, mine: Path, tmp_path: Path) -> None:
    """A reward file with the module beside it, and a tool of a package that only the driver has installed."""
    site = editable(tmp_path)
    own = words(
        *PATIENT,
        "run.name=x",
        f"reward.function={mine}/reward.py:score",
        "tools.echo.path=herald.tools:echo",
        f"runtime.address={cluster.address}",
        "train.steps=1",
    )
    (tmp_path / "elsewhere").mkdir()
    with driver("train", *own, cwd=tmp_path / "elsewhere", site=site) as process:
        out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    run = tmp_path / "elsewhere/runs/x"
    assert metrics(run)[1]["reward/sent"] == 1.0, "the module was imported from the driver's folder"
    said = [segment.text for t in rollouts(run)[1] for segment in t.segments if segment.source == "tool"]
    assert len(said) == 16
    assert all(text.endswith("!") for text in said), said


def test_a_driver_killed_while_ray_starts_leaves_nothing(tmp_path: Path) -> None:
    """Ray's agents show no mark, and the driver has not heard of its session yet."""

    def agents() -> list[int]:
        return [pid for pid, _ in descendants(process.pid) if of_ray(pid)]

    with driver("train", *words(*PATIENT, "run.name=x"), cwd=tmp_path) as process:
        wait_until(lambda: agents() or process.poll() is not None, "the first of Ray's agents", 400)
        children = descendants(process.pid)
        process.kill()
        process.communicate()
    left = lambda: alive(children) or marked("no mark", process.pid)  # noqa: E731
    wait_until(lambda: not left(), "Ray's processes to end", 60, detail=left)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_a_driver_whose_workers_are_blocked(tmp_path: Path) -> None:
    blocking = shutil.copy(ROOT / "tests/trainer/blocking.py", tmp_path)
    tool = (f"tools.echo.path={blocking}:blocks_the_loop", "rollout.tool_timeout_s=6000")
    with driver("train", *words(*PATIENT, *tool, "run.name=x"), cwd=tmp_path) as process:
        wait_until(lambda: (tmp_path / "blocks").exists() or process.poll() is not None, "a blocked worker")
        children = descendants(process.pid)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            wait_until(
                lambda: process.poll() is not None or not waits(process.pid, signal.SIGINT), "it hears"
            )
        out, err = process.communicate(timeout=120)
    assert process.returncode in (130, -signal.SIGKILL), out + err
    assert "Traceback" not in err
    wait_until(lambda: not alive(children), "the run's processes to end", 60, detail=lambda: alive(children))


def ended_by(number: int, run: Path, step: int, *line: str) -> str:
    """A driver that gets this signal once the step's checkpoint is there: nothing of it stays behind. What it
    has said."""
    with driver("train", *line, cwd=run.parents[1]) as process:
        wait_until(lambda: saved(run) >= step or process.poll() is not None, f"checkpoint {step}", 400)
        assert process.poll() is None, process.communicate()
        children = descendants(process.pid)
        assert len(children) > 5
        memory = shared_memory(children)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == (130 if number == signal.SIGINT else -number), out + err
    wait_until(lambda: not alive(children), "the run's processes to end", 60, detail=lambda: alive(children))
    assert not [path for path in memory if path.exists()]
    return out


def saved(run: Path) -> int:
    """The step of the last checkpoint."""
    last = checkpoints.latest(run / "checkpoints")
    return checkpoints.step_of(last) if last else 0


def shared_memory(processes: set[tuple[int, str]]) -> set[Path]:
    """What they have in memory under a name that others could find."""
    found = set()
    for pid, _ in processes:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            found |= {Path(line.split(maxsplit=5)[5]) for line in lines if " /dev/shm/" in line}
    return found


@pytest.mark.slow
def test_nothing_stays_behind_and_the_run_goes_on_exactly(mine: Path, tmp_path: Path) -> None:
    """Killed, gone on with and stopped, from a foreign directory, with a user's reward that workers of the
    run's own cluster have to find."""
    what, run = ["algorithm.kl.where=none", f"reward.function={mine}/reward.py:score"], tmp_path / "runs/x"
    own = words(*PATIENT, *what, "run.name=x", "checkpoint.every=1", "train.steps=500")
    ended_by(signal.SIGKILL, run, 2, *own)
    done = saved(run)
    said = ended_by(signal.SIGINT, run, done + 2, "run.name=x", "run.resume=true")
    assert f"going on after step {done}\n" in said
    found = metrics(run)
    # One more than were made: with its last a run tries the held-out tasks again.
    alone = configured(*what, f"run.dir={tmp_path}", "run.name=whole", f"train.steps={len(found)}")
    whole = train(alone, command=["toolwright"])
    for mine_, theirs in zip(comparable(metrics(whole)[:-1]), comparable(found), strict=True):
        assert theirs == pytest.approx(mine_, abs=1e-6)
    wanted, made = rollouts(whole), rollouts(run)
    assert sorted(made) == sorted(wanted)[:-1]
    for step, attempts in made.items():
        assert [(t.seed, t.segments, t.reward) for t in attempts] == [
            (t.seed, t.segments, t.reward) for t in wanted[step]
        ]
