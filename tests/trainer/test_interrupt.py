"""Ctrl-C: a checkpoint is written, nothing is left behind, and the run goes on later as if it never came."""

from __future__ import annotations

import fcntl
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from termios import TIOCSCTTY
from typing import Any

import pytest

from tests.waiting import wait_until
from toolwright.cli import main
from toolwright.learner import checkpoints
from toolwright.trainer.interrupt import Interrupt, StopRequested

from .runs import HERE, metrics, trained, words

# Long enough that a signal always comes before the end; no checkpoint but the one written when asked to stop.
LONG = ("train.steps=100000", "checkpoint.every=0", "run.name=x")


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A user's file, with functions that leave a note when they take their time."""
    return Path(shutil.copy(HERE / "slow.py", tmp_path))


@pytest.fixture
def blocking(tmp_path: Path) -> Path:
    """A user's file, with functions that never return."""
    return Path(shutil.copy(HERE / "blocking.py", tmp_path))


@contextmanager
def running(*line: str, cwd: Path, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "toolwright", *line]
    process = subprocess.Popen(command, cwd=cwd, text=True, **{**pipe, **streams})
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed, none of which is a traceback."""
    out, err = process.communicate(timeout=400)
    assert "Traceback" not in out + err, err
    return out


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def waits(pid: int, number: int) -> bool:
    """Whether a signal was sent to a process and not yet taken by it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    waiting = next(int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:"))
    return bool(waiting >> (number - 1) & 1)


def last_step(run: Path) -> int:
    """The step of the last checkpoint, in a folder where nothing is half-written."""
    assert not list(run.rglob("*.partial"))
    last = checkpoints.latest(run / "checkpoints")
    assert last is not None
    state, _ = checkpoints.load(last)
    assert [row["step"] for row in metrics(run)] == list(range(state["step"] + 1))
    for name in ("report.html", "model/model.safetensors", "model/tokenizer.json"):
        assert (run / name).is_file()
    return int(state["step"])


def test_ctrl_c_while_sampling_is_answered_at_once_though_a_reward_hangs(tmp_path: Path, slow: Path) -> None:
    """What was sampled of this step is forgotten, and the order of tasks is as before it."""
    own = (f"reward.function={slow}:score", "reward.timeout_s=300", "reward.workers=1")
    with running("train", *words(*LONG, *own), cwd=tmp_path) as process:
        wait_until((tmp_path / "hangs").exists, "the reward hangs")
        workers = children(process.pid)
        assert workers, "the reward has a process of its own"
        process.send_signal(signal.SIGINT)
        asked = time.monotonic()
        out = ended(process)
    assert time.monotonic() - asked < 200  # the reward is given 300
    assert process.returncode == 130
    assert "stopped at step 1; continue with: toolwright train run.name=x run.resume=true\n" in out
    assert last_step(tmp_path / "runs/x") == 1
    wait_until(lambda: not any(map(alive, workers)), "the reward's process has ended")
    resumed = trained(tmp_path / "runs", *own, "run.name=x", "run.resume=true")
    whole = trained(tmp_path / "runs", *own, "run.name=y")
    assert metrics(resumed)[2]["policy/loss"] == metrics(whole)[2]["policy/loss"]


def test_a_run_that_is_killed_leaves_no_process_behind(tmp_path: Path, slow: Path) -> None:
    own = (f"reward.function={slow}:score", "reward.timeout_s=300", "reward.workers=1")
    with running("train", *words(*LONG, *own), cwd=tmp_path) as process:
        wait_until((tmp_path / "hangs").exists, "the reward hangs")
        started = children(process.pid)
        assert len(started) > 1, "the reward's process, and who watches over the run"
        process.kill()
        process.communicate()
    wait_until(lambda: not any(map(alive, started)), "all that it started has ended")


def test_an_update_is_finished_before_the_run_stops(tmp_path: Path, slow: Path) -> None:
    own = f"algorithm.adv_estimator={slow}:estimate"
    with running("train", *words(*LONG, own), cwd=tmp_path) as process:
        wait_until((tmp_path / "learns").exists, "the update has begun")
        process.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        out = ended(process)
    assert process.returncode == 143
    assert "stopped at step 1; continue with" in out
    assert last_step(tmp_path / "runs/x") == 1


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path, slow: Path) -> None:
    own = (f"algorithm.adv_estimator={slow}:estimate", "update.epochs=100000")
    with running("train", *words(*LONG, *own), cwd=tmp_path) as process:
        wait_until((tmp_path / "learns").exists, "the update has begun")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: not waits(process.pid, signal.SIGINT), "it was heard: two at once would be one")
        (tmp_path / "go").touch()
        wait_until((tmp_path / "went").exists, "the update goes on")
        assert process.poll() is None, "the first one waits for the update"
        process.send_signal(signal.SIGINT)
        ended(process)
    assert process.returncode == 130
    assert checkpoints.latest(tmp_path / "runs/x/checkpoints") is None
    assert not list(tmp_path.rglob("*.partial"))


# With each of these, one Ctrl-C may do nothing: the interpreter itself waits.
BLOCKED = {
    "a tool that blocks the event loop": ("tool", "blocks_the_loop"),
    "a tool that blocks its thread": ("tool", "blocks_its_thread"),
    "a tool that blocks the interpreter": ("tool", "blocks_the_interpreter"),
    "an environment": ("environment", ""),
    "a scorer in the run's own process": ("scorer", ""),
}


QUICK = (
    "a tool that blocks the event loop",
    "a tool that blocks the interpreter",
)  # the easiest, the hardest


@pytest.mark.parametrize(
    "who", [who if who in QUICK else pytest.param(who, marks=pytest.mark.slow) for who in BLOCKED]
)
def test_a_second_ctrl_c_ends_a_run_that_somebody_blocks(who: str, tmp_path: Path, blocking: Path) -> None:
    kind, name = BLOCKED[who]
    own = {
        "tool": (
            f"tools.echo.path={blocking}:{name}",
            f"rollout.agent={HERE.parent}/runtime/echoes.py:Caller",
        ),
        "environment": (f"task.name={blocking}:tasks", "rollout.agent=environment"),
        "scorer": (f"task.name={blocking}:tasks",),
    }[kind]
    with running("train", *words(*LONG, *own, "rollout.tool_timeout_s=6000"), cwd=tmp_path) as process:
        wait_until(
            lambda: (tmp_path / "blocks").exists() or process.poll() is not None, "somebody blocks the run"
        )
        beats = tmp_path / "beats"
        if beats.exists():  # the note comes just before the block
            wait_until(lambda: time.time() - beats.stat().st_mtime > 2, "the interpreter is blocked")
        watcher = children(process.pid)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            wait_until(lambda: gone(process) or not waits(process.pid, signal.SIGINT), "it was heard")
        _, err = process.communicate(timeout=200)  # they block for 6000
    # Killed where not even a handler can run, or on a machine where that takes a while.
    assert process.returncode in (130, -signal.SIGKILL)
    assert ("again: stop at once" in err) is (name != "blocks_the_interpreter")
    wait_until(lambda: not any(map(alive, watcher)), "who watched over it has ended")


def gone(process: subprocess.Popen[str]) -> bool:
    return process.poll() is not None


def take_terminal() -> None:
    """Makes standard input the terminal of this process, as a shell that was not started by nohup does."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    fcntl.ioctl(0, TIOCSCTTY, 0)


def test_a_terminal_that_hangs_up_is_a_stop_like_any_other(tmp_path: Path, slow: Path) -> None:
    """With its live display, which cannot be drawn any more."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "CI": "", "NO_COLOR": "", "PYTHONUTF8": "1"}
    own = f"algorithm.adv_estimator={slow}:estimate"
    of_its_own: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "env": environment}
    start = {**of_its_own, "start_new_session": True, "preexec_fn": take_terminal}
    (tmp_path / "go").touch()
    with running("train", *words(*LONG, own), cwd=tmp_path, **start) as process:
        os.close(theirs)
        shown = b""
        while not (tmp_path / "runs/x/rollouts/step_000001.parquet").exists():
            shown += os.read(ours, 4096)
        os.close(ours)
        process.wait(400)
    assert b"\x1b[" in shown, "the display was drawn"
    assert process.returncode == 129
    assert last_step(tmp_path / "runs/x") >= 1
    assert (
        "continue with: toolwright train run.name=x run.resume=true"
        in (tmp_path / "runs/x/log.txt").read_text()
    )


def test_a_pipe_that_nobody_reads_does_not_end_a_run(tmp_path: Path) -> None:
    """As `| head -1` leaves it."""
    with running("train", *words("run.name=x"), cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("letters.py:tasks, 2 steps\n")
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(timeout=400)
    assert (process.returncode, err) == (0, "")
    assert last_step(tmp_path / "runs/x") == 2
    assert "the output of this run was closed" in (tmp_path / "runs/x/log.txt").read_text()


def test_a_run_needs_no_standard_output_at_all(tmp_path: Path) -> None:
    line = shlex.join([sys.executable, "-m", "toolwright", "train", *words("run.name=x")])
    done = subprocess.run(["sh", "-c", f"exec {line} >&-"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert last_step(tmp_path / "runs/x") == 2


def test_a_warm_start_told_to_stop_can_be_continued(tmp_path: Path) -> None:
    run = tmp_path / "runs/x"
    line = ("sft", "run.name=x", "steps=100000", "run.threads=1", "task.held_out_size=4", "model.layers=1")
    with running(*line, cwd=tmp_path) as process:
        wait_until((run / "metrics.jsonl").exists, "the first step is done")
        process.send_signal(signal.SIGINT)
        out = ended(process)
    assert process.returncode == 130
    assert "continue with: toolwright sft run.name=x run.resume=true" in out
    assert (run / "model/model.safetensors").is_file()
    step = last_step(run)
    assert f"stopped at step {step}; " in out
    assert main(["sft", f"run.dir={run.parent}", "run.name=x", "run.resume=true", f"steps={step + 1}"]) == 0
    assert last_step(run) == step + 1


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupt():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_request_is_answered_at_the_next_safe_place() -> None:
    cancelled: list[bool] = []
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StopRequested), interrupt.safe(lambda: cancelled.append(True)):
            pytest.fail("nothing begins once the run is to stop")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(SystemExit) as left:
            interrupt.leave()
    assert left.value.code == 143
    assert not cancelled
