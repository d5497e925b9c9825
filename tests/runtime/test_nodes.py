"""Two nodes: the second is used from the next step on, and survived when it is gone in mid-step."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import metrics, rollouts
from toolwright.runtime.session import alive_nodes
from toolwright.trainer.loop import train
from toolwright.trainer.run_folder import RunFolder

from .clusters import HERE, PATIENT, comparable, configured
from .conftest import Build

pytestmark = pytest.mark.xdist_group("ray deaths")


def wait_until(condition: Any, what: str, limit_s: float = 240) -> None:
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, f"waited {limit_s} s for {what}"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_node_that_joins_is_used_and_one_that_goes_is_survived(
    build: Build, cluster: Any, tmp_path: Path
) -> None:
    own = ["train.steps=6", "eval.every=0", f"rollout.agent={HERE}/echoes.py:Slow"]
    here = train(configured(f"run.dir={tmp_path}", "run.name=here", *own), command=["toolwright"])
    config = configured(*PATIENT, f"run.dir={tmp_path}", "run.name=there", *own)
    trainer = build(f"run.dir={tmp_path}", "run.name=there", *own)
    roles: Any = trainer.roles
    assert [slot.name for slot in roles.pool.rollout_slots] == ["rollout-0"]
    second = cluster.add_node(num_cpus=2)
    removed = threading.Event()
    learn, sample = trainer.learn, trainer.sample

    def sampling(step: int) -> Any:
        if step == 3:
            wait_until(lambda: len(roles.rollouts.ready_workers()) == 2, "the worker of the second node")
        if step == 4:  # in mid-step: frozen, its worker has attempts at hand when the node goes
            doomed = roles.pool.slots["rollout-1"].identity.pid
            os.kill(doomed, signal.SIGSTOP)

            def remove() -> None:
                cluster.remove_node(second, allow_graceful=False)
                with suppress(ProcessLookupError):
                    os.kill(doomed, signal.SIGKILL)
                removed.set()

            threading.Timer(0.3, remove).start()
        return sample(step)

    def learning(sampled: Any, step: int) -> dict[str, float]:
        if step == 4:
            assert removed.wait(240)
        return learn(sampled, step)

    trainer.sample, trainer.learn = sampling, learning  # type: ignore[method-assign]
    folder = RunFolder.claim(config.run, made_of=["x"])
    list(trainer.steps(folder, command=["toolwright"]))
    there = folder.path
    assert [row["step"] for row in metrics(there)] == list(range(7))
    for mine, theirs in zip(comparable(metrics(here)), comparable(metrics(there)), strict=True):
        assert theirs == pytest.approx(mine, abs=1e-6)
    assert all(len(attempts) == 16 for attempts in rollouts(there).values())
    log = (there / "log.txt").read_text()
    assert "rollout-1 joined with a new node" in log
    assert "died" in log or "was lost" in log
    wait_until(lambda: len(alive_nodes()) == 1, "the others to know that the node is gone")
