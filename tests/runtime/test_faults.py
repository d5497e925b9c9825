"""Workers that die, freeze or lie: the step completes, every group is whole, and what happened is told."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from toolwright.failures import InfrastructureFailure
from toolwright.runtime.seats import Seat

from .clusters import HERE
from .conftest import Build

pytestmark = pytest.mark.xdist_group("ray")

SLOW = f"rollout.agent={HERE}/echoes.py:Slow"


def seats(trainer: Any) -> dict[str, Seat]:
    found: dict[str, Seat] = trainer.crew.seats
    return found


def pid(seat: Seat) -> int:
    assert seat.identity is not None
    return seat.identity.pid


def shortly(seat: Seat, number: int, after_s: float = 0.15) -> threading.Timer:
    timer = threading.Timer(after_s, os.kill, (pid(seat), number))
    timer.start()
    return timer


def test_a_dead_rollout_workers_attempts_are_sampled_again(build: Build) -> None:
    trainer = build("runtime.placement.rollout.workers=2", SLOW)
    undisturbed = [t.segments for t in trainer.sample(1).attempts]
    trainer.order.restore({**trainer.order.state(), "position": 0, "epoch": 0})
    shortly(seats(trainer)["rollout-0"], signal.SIGKILL)
    disturbed = trainer.sample(1)
    assert [t.segments for t in disturbed.attempts] == undisturbed
    assert all(group.complete for group in disturbed.groups)
    found = trainer.crew.incidents()
    assert any(i.died and i.role == "rollout" for i in found), found
    assert sum(i.resampled for i in found) > 0


@pytest.mark.parametrize("role", ["reward", "reference"])
def test_a_dead_reward_or_reference_is_replaced_and_asked_again(build: Build, role: str) -> None:
    trainer = build("algorithm=grpo", "algorithm.kl.where=loss")
    trainer.learn(trainer.sample(1), 1)
    seat = seats(trainer)[role]
    before = pid(seat)
    os.kill(before, signal.SIGKILL)
    second = trainer.learn(trainer.sample(2), 2)
    assert pid(seat) != before
    assert second["reference/kl"] >= 0
    assert [i.role for i in trainer.crew.incidents() if i.died] == [role]


def test_a_frozen_worker_is_named_in_time_and_replaced(build: Build) -> None:
    trainer = build("runtime.placement.rollout.workers=2", "runtime.heartbeat_timeout_s=6", SLOW)
    seat = seats(trainer)["rollout-1"]
    frozen, started = pid(seat), time.monotonic()
    shortly(seat, signal.SIGSTOP)
    sampled = trainer.sample(1)
    took = time.monotonic() - started
    assert all(group.complete for group in sampled.groups)
    assert len(sampled.groups) == 4
    found = [i for i in trainer.crew.incidents() if i.died]
    assert [i.who.split()[0] for i in found] == ["rollout-1"]
    assert f"pid {frozen}" in found[0].who
    assert "has not answered for runtime.heartbeat_timeout_s=6 s" in found[0].what
    assert "rollout.run of 4 attempts" in found[0].what
    assert took < 60
    with pytest.raises(ProcessLookupError):
        os.kill(frozen, 0)


def test_a_task_that_kills_its_worker_twice_is_kept_from_others(build: Build, deadly: Path) -> None:
    trainer = build(
        f"rollout.agent={HERE}/echoes.py:Deadly",
        "runtime.placement.rollout.workers=2",
        "rollout.prompts=8",
    )
    poison = trainer.train_tasks[trainer.order._indices[0]].id
    (deadly / poison).touch()
    try:
        sampled = trainer.sample(1)
    finally:
        (deadly / poison).unlink()
    assert sampled.dropped == 1
    assert len(sampled.groups) == 7
    assert all(f"task {poison} is in quarantine" in message for message in sampled.failures)
    assert sum(i.died for i in trainer.crew.incidents()) == 2


def test_weights_that_arrive_damaged_are_an_error(build: Build) -> None:
    trainer = build()
    trainer.crew._compare(seats(trainer)["rollout-0"], trainer.crew._checksum)  # type: ignore[attr-defined]
    with pytest.raises(InfrastructureFailure, match="weights of version 0 arrived damaged in rollout-0"):
        trainer.crew._compare(seats(trainer)["rollout-0"], 1)  # type: ignore[attr-defined]


def test_a_stuck_actor_is_named_with_its_stage_and_stack(build: Build) -> None:
    trainer = build(
        "runtime.placement.rollout.workers=2",
        "runtime.stage_timeout_s=4",
        f"rollout.agent={HERE}/echoes.py:Stuck",
    )
    sampled = trainer.sample(1)
    assert len(sampled.groups) == 4
    stuck = [i for i in trainer.crew.incidents() if i.died]
    assert stuck
    assert "has been in rollout.run for" in stuck[0].what
    assert "hangs_here" in stuck[0].stack
