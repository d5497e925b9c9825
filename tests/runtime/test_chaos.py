"""kill -9 at random moments, again and again: every step is complete, and every death is told."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import metrics, rollouts
from toolwright.trainer.loop import train
from toolwright.trainer.run import Run
from toolwright.trainer.run_folder import RunFolder

from .clusters import HERE, configured, told
from .conftest import Build

pytestmark = pytest.mark.xdist_group("ray")

STEPS = 12
OWN = [
    f"train.steps={STEPS}",
    f"rollout.agent={HERE}/echoes.py:Coder",
    "tools.python.timeout_s=20",
    "algorithm.kl.where=loss",
    "rollout.retries=7",
    "rollout.retry_pause_s=0.5",
]


class Killer(threading.Thread):
    """One death a step at a random moment of it: a rollout worker, the reward, the reference, a sandbox."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(daemon=True)
        self.trainer, self.draw = trainer, random.Random(7)
        self.killed: list[str] = []
        self.over = False

    def run(self) -> None:
        last = -1
        while not self.over:
            step = self.trainer.step_done
            if step != last:
                last = step
                time.sleep(self.draw.uniform(0.0, 0.4))
                self._kill()
            time.sleep(0.01)

    def _kill(self) -> None:
        seats = [seat for name, seat in self.trainer.crew.seats.items() if name != "policy" and seat.ready]
        doomed = {seat.described: seat.identity.pid for seat in seats}
        for seat in seats:
            doomed.update({f"(pid {pid})": pid for pid in sandboxes(seat.identity.pid)})
        if doomed:
            who = self.draw.choice(sorted(doomed))
            with suppress(ProcessLookupError):
                os.kill(doomed[who], signal.SIGKILL)
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


def test_a_run_through_ten_deaths_ends_as_one_without(build: Build, tmp_path: Path) -> None:
    here = train(configured(f"run.dir={tmp_path}", "run.name=here", *OWN), command=["toolwright"])
    named = [f"run.dir={tmp_path}", "run.name=there"]
    trainer = build("runtime.placement.rollout.workers=2", *named, *OWN)
    folder = RunFolder.claim(trainer.config.run, made_of=["x"])
    killer = Killer(trainer)
    killer.start()
    Run(trainer.config, trainer, folder).go(["toolwright"])
    killer.over = True
    killer.join()
    there = folder.path
    assert len(killer.killed) >= 10
    assert [row["step"] for row in metrics(there)] == list(range(STEPS + 1))
    for mine, theirs in zip(told(metrics(here)), told(metrics(there)), strict=True):
        assert theirs == pytest.approx(mine, abs=1e-6)
    assert all(len(attempts) == 16 for attempts in rollouts(there).values())
    noted = [json.loads(line) for line in (there / "incidents.jsonl").read_text().splitlines()]
    died = " ".join(f"{row['who']} {row['what']}" for row in noted if row["died"])
    told_of = [who for who in killer.killed if who in died]
    assert len(told_of) >= 10, (killer.killed, died)  # a sandbox may go down with its worker, unheard
    page = (there / "report.html").read_text()
    assert all(row["who"] in page for row in noted)
    assert sum(row.get("runtime/deaths", 0) for row in metrics(there)) >= 10
