"""Run folders below a folder: where they are, what each is, how far it came and what it takes of the disk."""

from __future__ import annotations

import os
import re
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toolwright.config.keys import value_at
from toolwright.config.yaml_file import read_yaml
from toolwright.failures import UserError
from toolwright.observe.metrics import Metrics, Row, series

Status = Literal["running", "finished", "stopped"]

MADE_BY_A_RUN = ("config.yaml", "metrics.jsonl", "command.txt")
INNER = frozenset({"checkpoints", "rollouts", "model", "model.old", "model.partial", "searches"})
KINDS = ("train", "sft", "rm", "eval", "workflow")
# The files that tell when a run last wrote anything.
WRITTEN = (*MADE_BY_A_RUN, "log.txt", "timeline.json", "rollouts", "checkpoints", "report.html")
DEEPEST, MOST_FOLDERS = 6, 20_000  # that are searched below a folder
_PROCESS = re.compile(r"^process (\d{1,9}) on (\S+), begun (\d+)$", re.MULTILINE)
# A run of another machine is over once it wrote nothing for both this long and so many of its longest steps.
QUIET_S, QUIET_STEPS = 120.0, 4.0


@dataclass(frozen=True)
class RunState:
    """The state of a run, read from its folder without its attempts."""

    path: Path
    kind: str  # train, sft, rm, eval or workflow; empty if the folder does not tell
    status: Status
    step: int
    steps: int | None  # that it is to take
    reward: float | None  # of the last step
    accuracy: float | None  # held out, the last time
    updated: float  # seconds since 1970
    problem: str = ""  # why a file of it could not be read


def is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in MADE_BY_A_RUN)


def find(folder: Path) -> Iterator[Path]:
    """Every run folder at or below `folder`, level by level and by name. Links are not followed: they could
    lead out of the folder, or in a circle. A run's own folders are not searched."""
    todo, seen = deque([(folder, 0)]), 0
    while todo and seen < MOST_FOLDERS:
        path, depth = todo.popleft()
        seen += 1
        run = is_run(path)
        if run:
            yield path
        if depth < DEEPEST:
            todo += [(below, depth + 1) for below in _folders(path) if not run or below.name not in INNER]


def state(path: Path, *, now: float | None = None) -> RunState:
    """Read how far a run came. A file that cannot be read is a `problem`, not an error: others may be
    fine."""
    tree: dict[str, Any] = {}
    rows: list[Row] = []
    problem = ""
    try:
        tree = read_yaml(path / "config.yaml") if (path / "config.yaml").is_file() else {}
        rows = Metrics.read(path / "metrics.jsonl")
    except (UserError, OSError) as error:
        problem = " ".join(str(error).split())
    command = _text(path / "command.txt")
    kind = kind_of(command, tree)
    steps = planned_steps(kind, tree)
    step = max((int(row.get("step", 0)) for row in rows), default=0)
    rewards, accuracies = series(rows, "reward/mean"), series(rows, "held_out/accuracy")
    longest = max((seconds for _, seconds in series(rows, "time/total_s")), default=0.0)
    written = {name: at for name in WRITTEN if (at := _changed(path / name))}
    return RunState(
        path=path,
        kind=kind,
        status=status(step if rows else -1, steps, written, command, longest_step_s=longest, now=now),
        step=step,
        steps=steps,
        reward=rewards[-1][1] if rewards else None,
        accuracy=accuracies[-1][1] if accuracies else None,
        updated=max(written.values(), default=0.0),
        problem=problem,
    )


def planned_steps(kind: str, tree: dict[str, Any]) -> int | None:
    """Read the planned number of steps from the configuration; None if that does not tell."""
    keys = {"train": "train.steps", "sft": "steps", "rm": "steps"}
    found = 0 if kind == "eval" else value_at(tree, keys.get(kind, ""))
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def status(
    step: int,
    steps: int | None,
    written: Mapping[str, float],
    command: str,
    *,
    longest_step_s: float,
    now: float | None = None,
) -> Status:
    """`step`: the last one that metrics tell of, -1 without any. `steps`: the planned number. `written`: when
    each file was changed. `command`: command.txt."""
    if steps is not None and step >= steps:
        return "finished"
    last = max(written.get("metrics.jsonl", 0.0), written.get("config.yaml", 0.0))
    if written.get("report.html", -1.0) >= last:  # a run writes its report last
        return "finished" if steps is None else "stopped"
    alive = process_alive(command)
    if alive is None:
        quiet_s = (time.time() if now is None else now) - max(written.values(), default=0.0)
        alive = quiet_s < max(QUIET_S, QUIET_STEPS * longest_step_s)
    return "running" if alive else "stopped"


def process_alive(command: str) -> bool | None:
    """Return True if the process that last worked on the run, by its command.txt, still lives; None if that
    cannot be told here: it ran on another machine, or under a version that did not note it."""
    noted = _PROCESS.findall(command)
    if not noted or noted[-1][1] != socket.gethostname() or not Path("/proc/self/stat").exists():
        return None
    pid, _, began = noted[-1]
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    # A number that is used again belongs to a process that began at another time. One that is over may wait
    # for its parent to notice (Z).
    return fields[19:20] == [began] and fields[0] not in "ZX"


def worker(path: Path) -> int | None:
    """The number of another process of this machine that works on the run now; None if there is none."""
    command = _text(path / "command.txt")
    if not process_alive(command) or state(path).status != "running":
        return None
    pid = int(_PROCESS.findall(command)[-1][0])
    return None if pid == os.getpid() else pid


def size(path: Path) -> int:
    """Bytes of all files below a folder."""
    found = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                found += os.lstat(os.path.join(folder, name)).st_size
            except OSError:  # removed meanwhile
                continue
    return found


def kind_of(command: str, tree: Mapping[str, Any]) -> str:
    """The command that made the run, by command.txt and config.yaml. Version 0.1 and the Python interface
    write the same file."""
    words = [line.split() for line in command.splitlines() if line.startswith("toolwright ")]
    said = next((word[1] for word in reversed(words) if len(word) > 1 and word[1] in KINDS), "")
    blocks = {"workflow": "workflow", "algorithm": "train", "demonstrations": "sft"}
    return said or next((kind for block, kind in blocks.items() if block in tree), "")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _changed(path: Path) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            found = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(below for below in found if not below.name.startswith("."))
