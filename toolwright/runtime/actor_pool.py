"""The actors of one run: started together, watched over, and replaced when they die."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import ray

from toolwright.runtime import session
from toolwright.runtime.actor_placement import ActorPlacer
from toolwright.runtime.actors import ActorSlot, Lost
from toolwright.runtime.learners import LEARNING
from toolwright.runtime.placement import ActorPlace, ActorSpec
from toolwright.runtime.publication import Publication
from toolwright.runtime.roles import Incident
from toolwright.runtime.supervision import Supervisor
from toolwright.runtime.timeline import Event

if TYPE_CHECKING:
    from toolwright.config import schema

log = logging.getLogger(__name__)

CLOSING_S = 15.0  # for a role to end what it started, before its process is ended
EVENTS_S = 10.0  # for an actor to say what it did in a step
MOST_THREADS = 1024  # made as they are needed: all ranks have to be started at once
STARTS = 3  # of one actor that died, before it is given up


class ActorPool:
    """The actors of a run. `new_slot` makes the slot of an actor that is placed. `publication` has the
    weights that a rollout worker loads before it samples."""

    def __init__(
        self,
        config: schema.Runtime,
        placer: ActorPlacer,
        new_slot: Callable[[ActorSpec, ActorPlace], ActorSlot],
    ) -> None:
        self.config, self.placer, self.new_slot = config, placer, new_slot
        self.slots: dict[str, ActorSlot] = {}
        self.threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="actors")
        self.publication = Publication(config, self.replace)
        self.supervisor: Supervisor | None = None
        self._incidents: list[Incident] = []
        self._lock = threading.Lock()

    @property
    def rollout_slots(self) -> list[ActorSlot]:
        return [slot for slot in self.slots.values() if "rollout" in slot.spec.roles]

    def place(self) -> None:
        for spec, where in self.placer.place():
            self.slots[spec.name] = self.new_slot(spec, where)

    def supervise(self) -> None:
        self.supervisor = Supervisor(self.slots, self.config, self.replace)
        self.supervisor.start()

    def use_new_nodes(self) -> None:
        """Retire the workers on nodes that left, and start workers on nodes that joined."""
        alive = session.alive_nodes()
        for slot in self.rollout_slots:
            if slot.place.node is not None and slot.place.node not in alive:
                del self.slots[slot.name]
                slot.retire()
        used = {slot.place.node for slot in self.rollout_slots}
        for spec, where in list(self.placer.new_workers(used)):
            slot = self.slots[spec.name] = self.new_slot(spec, where)
            self.note(slot, "joined with a new node", "it samples from now on", died=False)
            self.threads.submit(self._join, slot)

    def _join(self, slot: ActorSlot) -> None:
        try:
            slot.open(then=self.publication.load_into, guard=self.publication.lock)
        except Exception as error:
            slot.retire()
            self.note(slot, f"could not start: {error}", "the others go on without it", died=False)

    def replace(self, slot: ActorSlot, incarnation: int, what: str, stack: str = "") -> None:
        """Replace a process that died or must end. Whoever notices first calls this."""
        if not slot.give_up(incarnation):
            return
        learns = LEARNING & set(slot.spec.roles)
        gone = slot.place.node is not None and slot.place.node not in session.alive_nodes()
        done = "the run goes back to its last checkpoint" if learns else "it is replaced"
        self.note(slot, what, "its node is gone as well" if gone else done, stack=stack)
        slot.end()
        if not learns and not gone:
            self.threads.submit(self._revive, slot)

    def _revive(self, slot: ActorSlot) -> None:
        then = self.publication.load_into if "rollout" in slot.spec.roles else None
        for _ in range(STARTS):
            try:
                slot.open(then=then, guard=self.publication.lock)
                return
            except Lost as error:
                self.note(slot, f"did not come back: {error}", "it is tried again")
                slot.end()
            except Exception as error:
                self.note(slot, f"did not come back: {error}", "it is not tried again", died=False)
                break
        slot.retire()

    def note(
        self, slot: ActorSlot, what: str, done: str, *, resampled: int = 0, died: bool = True, stack: str = ""
    ) -> None:
        """Record an incident of one actor for `incidents`."""
        role = slot.spec.roles[0]
        incident = Incident(slot.described, role, what, done, resampled=resampled, died=died, stack=stack)
        self.add(incident)
        log.warning("%s", incident.line)

    def add(self, *incidents: Incident) -> None:
        with self._lock:
            self._incidents += incidents

    def incidents(self) -> list[Incident]:
        with self._lock:
            found, self._incidents = self._incidents, []
        return found

    def events(self) -> list[Event]:
        """Return the events of all actors since the last call. Events of an actor that died meanwhile are
        lost."""
        refs = [slot.drain() for slot in list(self.slots.values()) if slot.ready]
        done, _ = ray.wait(refs, num_returns=len(refs), timeout=EVENTS_S) if refs else ([], [])
        events: list[Event] = []
        for ref in done:
            try:
                events += ray.get(ref)
            except ray.exceptions.RayError:
                continue
        restarted = [event for event in events if event.died]
        self.add(
            *(Incident(e.who, "sandbox", f"saw that {e.died}", "it was started again") for e in restarted)
        )
        return sorted((e for e in events if not e.died), key=lambda event: event.started)

    def close(self) -> None:
        if self.supervisor is not None:
            self.supervisor.stop()
        slots: Sequence[ActorSlot] = list(self.slots.values())
        refs = [slot.close_roles() for slot in slots if slot.ready]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=CLOSING_S)
        for slot in slots:
            slot.retire()
        self.publication.forget()
        self.placer.release()
        self.threads.shutdown(wait=False, cancel_futures=True)
