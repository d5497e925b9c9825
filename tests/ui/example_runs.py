"""Folders of runs for the page: real small ones, a search, and one that is out to do harm."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import DEVNULL, Popen

import toolwright as tw
from tests.interface.runs import first_letter, small
from toolwright.observe.metrics import Metrics
from toolwright.record import save
from toolwright.trajectory import ROOT, Failure, Segment, Task, Trajectory

SEARCH = (
    *("search.tasks=15", "search.held_out=5", "search.guided.first=5", "search.runs=60"),
    "proposer.name=uniform",
)
SLOW_REWARD = """import time

def score(solution_str, ground_truth):
    time.sleep(0.03)
    return float(solution_str[:1] == ground_truth[:1])
"""
HARM = "<script>window.harm = 1</script><img src=x onerror='window.harm = 1'>"
HARMFUL_RUN = "<img src=x onerror=window.harm=1>"
ESCAPES = "\x1b[31mred\x1b]0;title\x07 \u202egnp.exe\u2066 \x00\u200b\ud800"
HUGE_LINE = 10_000_000  # characters


def train(folder: Path, name: str, *words: str) -> None:
    """A run of a few steps, whose attempts earn different rewards."""
    for _ in small(folder, *words, name=name, reward=first_letter):
        pass


def search(folder: Path, name: str) -> None:
    tw.workflow.search("--config-name=quick", *SEARCH, f"run.dir={folder}", f"run.name={name}")


def start_endless(folder: Path, name: str) -> Popen[bytes]:
    """A run that goes on until somebody stops it, a few steps a second."""
    reward = folder.with_name("slow_reward.py")
    reward.write_text(SLOW_REWARD)
    words = (
        *("task=reverse", "task.train_size=64", "task.held_out_size=4", "task.params.max_length=3"),
        *("model.layers=1", "model.width=16", "model.heads=2", "model.kv_heads=2", "model.ffn=32"),
        *("rollout.prompts=2", "rollout.samples=4", "train.steps=1000000", "algorithm.kl.where=none"),
        *(f"run.dir={folder}", f"run.name={name}", f"reward.function={reward}:score"),
    )
    command = [sys.executable, "-m", "toolwright", "train", *words]
    return Popen(command, stdout=DEVNULL, stderr=DEVNULL)


def hostile(folder: Path) -> None:
    """A run whose name, metrics and attempts try to run scripts, to steer terminals and to be endless."""
    run = folder / HARMFUL_RUN
    (run / "rollouts").mkdir(parents=True)
    metrics = Metrics(run / "metrics.jsonl")
    for step in (1, 2):
        metrics.append(step, {"reward/mean": 0.5, HARM: float(step)})
    (run / "log.txt").write_text(f"{HARM}\n\x1b[31mred\n")
    save(
        run / "rollouts/step_1.parquet",
        [_attempt(HARM, 0), _attempt(ESCAPES, 1), _attempt("x" * HUGE_LINE, 2)],
    )


def branched(folder: Path) -> None:
    """A run whose attempt is a tree: a turn, two ways on from it, and a conversation of its own."""
    run = folder / "branched"
    (run / "rollouts").mkdir(parents=True)
    Metrics(run / "metrics.jsonl").append(1, {"reward/mean": 1.0})
    save(run / "rollouts/step_1.parquet", [branching_attempt()])


def branching_attempt() -> Trajectory:
    task = Task("t", [{"role": "user", "content": "Which way?"}])
    made = Trajectory(task, "1.0", reward=1.0, stop="eos", counts={"branches": 2})
    made.append(Segment("prompt", [1], text="Which way?"))
    made.append(Segment("policy", [2], [-0.1], text="Let me see."))
    made.append(Segment("environment", [3], text="Left?"))
    made.append(Segment("policy", [4, 5], [-0.2, -0.3], text="Left it is."))
    made.append(Segment("environment", [6], text="Right?", parent=1))
    made.append(Segment("policy", [7], [-0.4], text="Right it is."))
    made.append(Segment("prompt", [8], text="Sum it up.", parent=ROOT))
    made.append(Segment("policy", [9], [-0.5], text="Two ways."))
    return made


def _attempt(text: str, index: int) -> Trajectory:
    task = Task(HARM, [{"role": HARM, "content": text[:200]}], ground_truth=HARM, data_source="../../etc")
    found = Trajectory(
        task, group="../../../etc/passwd", index=index, reward=0.5, reward_parts={HARM: 1.0}, stop=HARM
    )
    found.append(Segment("prompt", [1, 2], text="a question"))
    found.append(Segment("policy", [3, 4], [-0.1, -2.0], text=text))
    call = {"name": HARM, "arguments": HARM, "seconds": 0.1, "trouble": HARM}
    found.append(Segment("tool", [5], text=text[:1000], calls=[call]))
    if index == 1:
        found.failure, found.reward = Failure("task", HARM), None
    return found
