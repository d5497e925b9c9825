"""Actors that die, freeze or lie: the step completes, every group is whole, and what happened is told.

One run for all of it: what a test breaks is whole again when the next begins.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import metrics
from tests.waiting import alive, wait_until
from toolwright.failures import UserError
from toolwright.runtime.actors import ActorSlot
from toolwright.runtime.roles import Incident
from toolwright.trainer.loop import TrainingLoop
from toolwright.trainer.run_folder import RunFolder

from .clusters import HERE, PATIENT, configured

pytestmark = pytest.mark.xdist_group("ray deaths")

OWN = [
    f"rollout.agent={HERE}/echoes.py:Troubled",
    "runtime.placement.rollout.workers=2",
    "algorithm=grpo",
    "algorithm.kl.where=loss",
]


class Patient:
    """A run under treatment."""

    def __init__(self) -> None:
        self.trainer = TrainingLoop(configured(*PATIENT, *OWN))
        self.roles: Any = self.trainer.roles
        self.steps = count(1)

    @property
    def slots(self) -> dict[str, ActorSlot]:
        found: dict[str, ActorSlot] = self.roles.pool.slots
        return found

    def pid(self, name: str) -> int:
        who = self.slots[name].identity
        assert who is not None
        return who.pid

    def freeze(self, name: str) -> int:
        """The process that it is. What it is asked for from now on stays undone."""
        frozen = self.pid(name)
        os.kill(frozen, signal.SIGSTOP)
        return frozen

    def kill(self, name: str) -> None:
        """With something at hand: it is frozen already when that comes."""
        threading.Timer(0.3, os.kill, (self.freeze(name), signal.SIGKILL)).start()

    def well(self) -> None:
        limit = time.monotonic() + 240
        while not all(slot.ready for slot in self.slots.values()):
            assert time.monotonic() < limit, "not all actors have come back"
            time.sleep(0.1)
        self.roles.incidents()

    @contextmanager
    def watched(self, **limits: float) -> Iterator[None]:
        """Under a watch with other limits than a busy machine needs."""
        watch = self.roles.pool.supervisor
        before, watch.config = watch.config, watch.config.model_copy(update=limits)
        try:
            yield
        finally:
            watch.config = before

    def deaths(self) -> list[Incident]:
        return [incident for incident in self.roles.incidents() if incident.died]


@pytest.fixture(scope="module")
def sick(cluster: Any) -> Iterator[Patient]:
    made = Patient()
    yield made
    made.trainer.close()


@pytest.fixture
def patient(sick: Patient) -> Patient:
    sick.well()
    return sick


def test_a_dead_rollout_workers_attempts_are_sampled_again(patient: Patient) -> None:
    trainer, step = patient.trainer, next(patient.steps)
    before = trainer.order.state()
    undisturbed = [t.segments for t in trainer.sample(step).attempts]
    trainer.order.restore(before)
    patient.kill("rollout-0")
    disturbed = trainer.sample(step)
    assert [t.segments for t in disturbed.attempts] == undisturbed
    assert all(group.complete for group in disturbed.groups)
    found = patient.roles.incidents()
    assert any(i.died and i.role == "rollout" for i in found), found
    assert sum(i.resampled for i in found) > 0


@pytest.mark.parametrize("role", ["reward", "reference"])
def test_a_dead_reward_or_reference_is_replaced_and_asked_again(patient: Patient, role: str) -> None:
    trainer, step, before = patient.trainer, next(patient.steps), patient.pid(role)
    os.kill(before, signal.SIGKILL)
    metrics = trainer.learn(trainer.sample(step), step)
    assert patient.pid(role) != before
    assert metrics["reference/kl"] >= 0
    assert [i.role for i in patient.deaths()] == [role]


def test_a_frozen_worker_is_named_in_time_and_replaced(patient: Patient) -> None:
    started = time.monotonic()
    with patient.watched(heartbeat_timeout_s=10):
        frozen = patient.freeze("rollout-1")
        sampled = patient.trainer.sample(next(patient.steps))
    assert time.monotonic() - started < 100
    assert len(sampled.groups) == 4
    assert all(group.complete for group in sampled.groups)
    (found,) = patient.deaths()
    assert found.who.startswith(f"rollout-1 (pid {frozen} on ")
    assert "has not answered for runtime.heartbeat_timeout_s=10 s" in found.what
    assert "rollout.run of 4 attempts" in found.what
    wait_until(lambda: not alive(frozen), "it has ended")


def test_a_stuck_actor_is_named_with_its_stage_and_stack(patient: Patient, deadly: Path) -> None:
    (deadly / "stuck").touch()
    with patient.watched(stage_timeout_s=10):
        sampled = patient.trainer.sample(next(patient.steps))
    assert len(sampled.groups) == 4
    stuck = patient.deaths()[0]
    assert "has been in rollout.run for" in stuck.what
    assert "hangs_here" in stuck.stack


def test_a_publication_that_does_not_arrive_is_an_incident_within_its_limit(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, step = patient.trainer, next(patient.steps)
    sampled = trainer.sample(step)
    monkeypatch.setattr(patient.roles.pool.publication, "limit_s", 10.0)
    deaf = patient.freeze("rollout-1")
    started = time.monotonic()
    trainer.learn(sampled, step)
    assert time.monotonic() - started < 100
    monkeypatch.undo()
    (found,) = patient.deaths()
    assert f"pid {deaf}" in found.who
    assert f"did not take weights of version {step} within runtime.publish_timeout_s=10 s" in found.what
    patient.well()
    described = [patient.slots[name].ask("rollout", "describe") for name in ("rollout-0", "rollout-1")]
    assert [one["weights_version"] for one in described] == [step, step]


def test_weights_that_arrive_damaged_end_the_run(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    learners = patient.roles.learners
    ask = learners.ask

    def wrong(method: str, *arguments: Any, **how: Any) -> Any:
        checksum, weights = ask(method, *arguments, **how)
        return checksum + 1, weights

    monkeypatch.setattr(learners, "ask", wrong)
    with pytest.raises(UserError, match="weights of version 77 arrived damaged in rollout-0"):
        patient.roles.rollouts.publish(77)
    monkeypatch.undo()
    patient.roles.rollouts.publish(77)  # whoever comes back later is compared with the right one


def test_a_task_that_kills_its_worker_twice_is_kept_from_others(patient: Patient, deadly: Path) -> None:
    trainer = patient.trainer
    order = trainer.order.state()
    poison = trainer.train_tasks[trainer.order.take(1)[0]].id
    trainer.order.restore(order)
    (deadly / poison).touch()
    try:
        sampled = trainer.sample(next(patient.steps))
    finally:
        (deadly / poison).unlink()
    assert sampled.dropped == 1
    assert len(sampled.groups) == 3
    assert all(f"task {poison} is in quarantine" in message for message in sampled.failures)
    assert len(patient.deaths()) == 2
    patient.roles.rollouts.quarantine.clear()


def test_a_policy_that_dies_again_and_again_is_given_up(patient: Patient, tmp_path: Path) -> None:
    """Without a checkpoint the run begins again, as often as it may; then it says how to go on."""
    trainer, learn = patient.trainer, patient.trainer.learn

    def dying(sampled: Any, step: int) -> dict[str, float]:
        found = learn(sampled, step)
        if step == 2:
            os.kill(patient.pid("policy"), signal.SIGKILL)
        return found

    own = [*PATIENT, *OWN, f"run.dir={tmp_path}", "run.name=x", "runtime.learner_restarts=1"]
    config = configured(*own)
    trainer.config = trainer.config.model_copy(update={"run": config.run, "runtime": config.runtime})
    trainer.learn = dying  # type: ignore[method-assign]
    folder = RunFolder.claim(config.run, made_of=["x"])
    with pytest.raises(
        UserError, match=r"policy was lost in .*learner_restarts=1 times; continue with: toolw"
    ):
        list(trainer.steps(folder, command=["toolwright"]))
    assert [row["step"] for row in metrics(folder.path)] == [0, 1, 2]
    noted = [json.loads(line) for line in (folder.path / "incidents.jsonl").read_text().splitlines()]
    died = [(row["role"], row["done"]) for row in noted if row["died"]]
    assert died == [("policy", "the run goes back to its last checkpoint")] * 2
    assert "the run goes back to the beginning" in (folder.path / "log.txt").read_text()
