"""What learns, as the driver asks it: the policy's ranks as one, and the critic. They are lost together.

Every call goes to all ranks with the same arguments, and the first one's answer is taken. A rank that dies
leaves the others waiting for it in the middle of an update, and a critic takes along what it alone had
learned: whichever is lost, all are ended, and the run goes back to where they were last saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import ray

from toolwright.failures import InfrastructureFailure
from toolwright.learner import checkpoints
from toolwright.record import to_table
from toolwright.runtime import wire
from toolwright.runtime.actors import ActorSlot, Lost, LostData, open_all
from toolwright.runtime.host import Rank
from toolwright.runtime.roles import LearnerLost, Learners
from toolwright.runtime.transport import RemoteTrajectory, TrajectoryRef
from toolwright.trajectory import Trajectory

LEARNING = {"policy", "critic", "process_reward"}  # what is lost with them cannot be asked of anybody else

PULSE_S = 5.0  # for one that lives to say so

Replace = Callable[[ActorSlot, int, str], None]


class RayLearners(Learners):
    """`replace` ends a lost process and starts another. `resample` samples attempts again that were lost with
    their node. `threads` start processes in parallel."""

    def __init__(
        self,
        slots: Sequence[ActorSlot],
        *,
        patience_s: float,
        replace: Replace,
        resample: Callable[[TrajectoryRef], None],
        threads: Executor,
    ) -> None:
        self.slots = [slot for slot in slots if LEARNING & set(slot.spec.roles)]
        self.ranks = [slot for slot in self.slots if "policy" in slot.spec.roles]
        self.reference = next((slot for slot in slots if "reference" in slot.spec.roles), None)
        self.patience_s, self.replace = patience_s, replace
        self.resample, self.threads = resample, threads

    @property
    def sharded(self) -> bool:
        return len(self.ranks) > 1

    @cached_property
    def parameters(self) -> int:
        return int(self.ask("describe")["parameters"])

    def number(self) -> None:
        """Tell each rank its number and where to meet the first rank."""
        if self.sharded:
            self.ranks[0].create()
            master = self.ranks[0].meeting_place()
            for index, slot in enumerate(self.ranks):
                slot.rank = Rank(index, len(self.ranks), master)

    def renew(self) -> None:
        """Start new processes for all ranks."""
        self._end()
        try:
            self.number()
            open_all(self.slots, self.threads)
        except Lost as error:
            raise self._lost(f"the learners did not come back: {error}") from None

    def take(self, trajectories: Sequence[Trajectory]) -> None:
        """Send trajectories by reference. Every rank fetches their tables."""
        while True:
            tables, rows = _rows(trajectories)
            try:
                self.ask("take", rows, *(table.object_ref for table in tables))
                return
            except LostData:
                for table in tables:
                    if not _fetchable(table.object_ref):
                        self.resample(table)

    def save(self, folder: Path, step: int, own: Mapping[str, Any], *, keep: int) -> None:
        """Save a checkpoint. Several ranks write it themselves, into a folder that all of them see. A single
        rank leaves it to the driver, so that only the driver has to see the folder."""
        if self.sharded:
            self.ask("save", str(folder.resolve()), step, dict(own), keep)
            return
        plain, state = wire.decode(self.ask("state"))
        checkpoints.save(folder, step, {**plain, **own}, state, keep=keep)

    def settle(self) -> None:
        if self.sharded:
            self.ask("settle")

    def restore(self, path: Path) -> None:
        if self.sharded:
            self.ask("restore_from", str(path.resolve()))
            return
        plain, tensors = checkpoints.load(path)
        state = wire.encode(tensors)
        if self.reference is not None and "reference" in state:
            self._keep_for_reference(state["reference"])
        self.ask("restore", plain, ray.put(state))

    def _keep_for_reference(self, state: Any) -> None:
        """Keep the weights that a replaced reference must start from."""
        kept = ray.put(state)
        assert self.reference is not None
        self.reference.on_start["state"] = lambda slot: slot.result(
            slot.send("reference", "load_state_dict", kept, early=True), slot.config.publish_timeout_s
        )

    def export(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.ask("export_files").items():
            (folder / name).write_bytes(content)  # numpy's own way does not tell why it could not

    def ask(
        self,
        method: str,
        *arguments: Any,
        role: str = "policy",
        returns: int = 1,
        limit_s: float | None = None,
    ) -> Any:
        """Call all ranks, and return the first rank's answer once all have answered. If a call returns
        several objects, only the first is fetched."""
        incarnations = [slot.incarnation for slot in self.ranks]
        sent = [slot.send(role, method, *arguments, returns=returns) for slot in self.ranks]
        refs = [ref if returns == 1 else ref[0] for ref in sent]
        with ExitStack() as awaited:
            for slot in self.ranks:
                awaited.enter_context(slot.awaited(f"{role}.{method}"))
            try:
                answers = self._gathered(refs, limit_s)
            except Lost as error:
                raise self._lost(f"the policy was lost in {method}: {error}") from None
            except InfrastructureFailure as error:
                raise self._lost(f"the policy cannot continue with {method}: {error}") from None
            except TimeoutError:
                what = f"has not answered {method} within {limit_s:g} s"
                for slot, incarnation in zip(self.ranks, incarnations, strict=True):
                    self.replace(slot, incarnation, what)
                raise self._lost(f"the policy {what}") from None
        return answers[0] if returns == 1 else (answers[0], *sent[0][1:])

    def _gathered(self, refs: Sequence[Any], limit_s: float | None) -> list[Any]:
        """Every rank's answer; what one of them raises, as soon as it does. If another has died, that is why:
        the ones that waited for it see it from their connections, often before Ray knows."""
        limit = None if limit_s is None else time.monotonic() + limit_s
        waiting = list(refs)
        while waiting:
            left = None if limit is None else max(0.0, limit - time.monotonic())
            done, waiting = ray.wait(waiting, num_returns=1, timeout=left)
            if not done:
                raise TimeoutError
            try:
                self.ranks[0].result(done[0])
            except Lost:
                raise
            except Exception:
                if waiting:
                    ray.wait(waiting, num_returns=len(waiting), timeout=self.patience_s)
                for ref in waiting:
                    if _gone(ref):
                        self.ranks[0].result(ref)
                raise
        return [self.ranks[0].result(ref) for ref in refs]

    def _lost(self, what: str) -> LearnerLost:
        """Report the actors that died, end the others, and return the error to raise."""
        pulses = [(slot, slot.incarnation, slot.pulse()) for slot in self.slots if slot.ready]
        if pulses:
            ray.wait([ref for *_, ref in pulses], num_returns=len(pulses), timeout=PULSE_S)
        for slot, incarnation, ref in pulses:
            if _gone(ref):
                self.replace(slot, incarnation, f"died; {what}")
        self._end()
        return LearnerLost(what)

    def _end(self) -> None:
        """End those that are still there."""
        for slot in self.slots:
            slot.give_up(slot.incarnation)
        for slot in self.slots:
            slot.end()


def _gone(ref: Any) -> bool:
    """Return True if the process that should answer is gone."""
    done, _ = ray.wait([ref], timeout=0, fetch_local=False)
    if not done:
        return False
    try:
        ray.get(ref)
    except ray.exceptions.RayActorError:
        return True
    except Exception:
        return False
    return False


def _rows(trajectories: Sequence[Trajectory]) -> tuple[list[TrajectoryRef], wire.TrajectoryRows]:
    """The tables that these lie in, and which table and row each is. Those that the driver holds itself, to
    be learned from again, are put into one more."""
    own = [t for t in trajectories if not isinstance(t, RemoteTrajectory)]
    held: dict[int, tuple[TrajectoryRef, int]] = {}  # by the identity of the trajectory
    if own:
        table = TrajectoryRef(ray.put(to_table(own)), ray.get)
        held = {id(t): (table, row) for row, t in enumerate(own)}
    found = [(t.ref, t.row) if isinstance(t, RemoteTrajectory) else held[id(t)] for t in trajectories]
    tables = list(dict.fromkeys([table for table, _ in found]))
    numbers = {table: number for number, table in enumerate(tables)}
    return tables, wire.TrajectoryRows(
        places=np.array([(numbers[table], row) for table, row in found], dtype=np.int32),
        rewards=np.array([t.reward or 0.0 for t in trajectories]),
        reward_parts=[t.reward_parts for t in trajectories],
        step_rewards=[t.step_rewards for t in trajectories],
    )


def _fetchable(ref: Any) -> bool:
    try:
        ray.get(ref)
    except ray.exceptions.RayError:
        return False
    return True
