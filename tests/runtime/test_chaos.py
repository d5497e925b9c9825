"""kill -9 at random moments, again and again: every step is complete, and every death is told."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import metrics, rollouts
from toolwright.trainer.loop import train
from toolwright.trainer.run_folder import RunFolder

from .clusters import HERE, comparable, configured
from .conftest import Build

pytestmark = pytest.mark.xdist_group("ray deaths")

STEPS = 12
OWN = [
    f"train.steps={STEPS}",
    f"rollout.agent={HERE}/echoes.py:Coder",
    "tools.python.timeout_s=20",
    "algorithm.kl.where=loss",
    "rollout.retries=7",
    "rollout.retry_pause_s=0.5",
]


class Killer:
    """One death a step at a random moment of it: a rollout worker, the reward, the reference, a sandbox."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.draw = trainer, random.Random(7)
        self.killed: list[str] = []
        self.spared = ""  # whose sandbox died last: it has yet to tell
        self.sample, self.learn = trainer.sample, trainer.learn
        trainer.sample, trainer.learn = self._sample, self._learn

    def _sample(self, step: int) -> Any:
        self.soon = threading.Timer(self.draw.uniform(0.0, 0.4), self._kill)
        self.soon.start()
        return self.sample(step)

    def _learn(self, sampled: Any, step: int) -> dict[str, float]:
        found = self.learn(sampled, step)
        self.soon.join()  # none without its death
        return found

    def _kill(self) -> None:
        doomed: dict[str, tuple[int, str]] = {}
        for name, slot in self.trainer.roles.pool.slots.items():
            if name != "policy" and slot.ready:
                doomed |= {f"(pid {pid})": (pid, name) for pid in sandboxes(slot.identity.pid)}
                doomed |= {slot.described: (slot.identity.pid, "")} if name != self.spared else {}
        if doomed:
            who = self.draw.choice(sorted(doomed))
            pid, self.spared = doomed[who]
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed.append(who)


def sandboxes(parent: int) -> list[int]:
    """The sandbox servers that a worker has started."""
    found = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                line = Path(f"/proc/{child}/cmdline").read_bytes()
                if b"toolwright.cli.sandbox" in line:
                    found.append(int(child))
    return found


@pytest.mark.slow
def test_a_run_through_ten_deaths_ends_as_one_without(build: Build, tmp_path: Path) -> None:
    here = train(configured(f"run.dir={tmp_path}", "run.name=here", *OWN), command=["toolwright"])
    named = [f"run.dir={tmp_path}", "run.name=there"]
    trainer = build("runtime.placement.rollout.workers=2", *named, *OWN)
    folder = RunFolder.claim(trainer.config.run, made_of=["x"])
    killer = Killer(trainer)
    list(trainer.steps(folder, command=["toolwright"]))
    there = folder.path
    assert len(killer.killed) >= 10
    assert [row["step"] for row in metrics(there)] == list(range(STEPS + 1))
    for mine, theirs in zip(comparable(metrics(here)), comparable(metrics(there)), strict=True):
        assert theirs == pytest.approx(mine, abs=1e-6)
    assert all(len(attempts) == 16 for attempts in rollouts(there).values())
    noted = [json.loads(line) for line in (there / "incidents.jsonl").read_text().splitlines()]
    died = " ".join(f"{row['who']} {row['what']}" for row in noted if row["died"])
    told_of = [who for who in killer.killed if who in died]
    assert len(told_of) >= 10, (killer.killed, died)  # a sandbox may go down with its worker, unheard
    page = (there / "report.html").read_text()
    assert all(row["who"] in page for row in noted)
    assert sum(row.get("runtime/deaths", 0) for row in metrics(there)) >= 10
