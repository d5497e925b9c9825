"""Watches every actor, and replaces one that is dead, frozen or stuck."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ray

from toolwright.runtime.actors import ActorSlot, first_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from toolwright.config import schema

log = logging.getLogger(__name__)

MOST_OFTEN_S, LEAST_OFTEN_S = 0.2, 2.0
STACK_S = 3.0  # for a stuck actor to say where it is


class Supervisor(threading.Thread):
    """`replace(slot, incarnation, what, stack)` is called for each that cannot go on."""

    def __init__(
        self,
        slots: Mapping[str, ActorSlot],
        config: schema.Runtime,
        replace: Callable[[ActorSlot, int, str, str], None],
    ) -> None:
        super().__init__(name="supervisor", daemon=True)
        self.slots, self.config, self.replace = slots, config, replace
        self.every_s = max(MOST_OFTEN_S, min(LEAST_OFTEN_S, config.heartbeat_timeout_s / 5))
        self._asked: dict[tuple[str, int], tuple[Any, float]] = {}
        self._wake, self._over = threading.Event(), False

    def stop(self) -> None:
        self._over = True
        self._wake.set()
        self.join(timeout=10)

    def run(self) -> None:
        while not self._over:
            for slot in list(self.slots.values()):
                if slot.ready and not self._over:
                    try:
                        self._look(slot)
                    except Exception:
                        log.exception("the watch over %s failed", slot.name)
            self._wake.wait(self.every_s)
            self._wake.clear()

    def _look(self, slot: ActorSlot) -> None:
        key = (slot.name, slot.incarnation)
        now = time.monotonic()
        if key not in self._asked:
            self._asked[key] = (slot.pulse(), now)
            return
        ref, asked = self._asked[key]
        done, _ = ray.wait([ref], timeout=0)
        if not done:
            if now - asked > self.config.heartbeat_timeout_s:
                del self._asked[key]
                self._frozen(slot, key[1])
            return
        del self._asked[key]
        try:
            pulse = ray.get(ref)
        except ray.exceptions.RayError as error:
            self.replace(slot, key[1], f"died: {first_line(error)}", "")
            return
        slot.last = (now, pulse)
        for stage, seconds in pulse.stages:
            if seconds > self.config.stage_timeout_s:
                self._stuck(slot, key[1], stage, seconds, pulse.awaits)
                return
        self._asked[key] = (slot.pulse(), now)

    def _frozen(self, slot: ActorSlot, incarnation: int) -> None:
        stage, awaits = _last_known(slot)
        asked = f" while {', '.join(slot.waits)} is pending" if slot.waits else ""
        what = (
            f"has not answered for runtime.heartbeat_timeout_s={self.config.heartbeat_timeout_s:g} s{asked}; "
            f"it was last seen in {stage}{awaits}; its stack cannot be read, because it does not answer"
        )
        self.replace(slot, incarnation, what, "")

    def _stuck(self, slot: ActorSlot, incarnation: int, stage: str, seconds: float, awaits: str) -> None:
        stack = slot.stacks(STACK_S)
        awaited = f", waiting for {awaits}" if awaits else ""
        what = (
            f"has been in {stage} for {seconds:.0f} s{awaited}, longer than "
            f"runtime.stage_timeout_s={self.config.stage_timeout_s:g}"
        )
        self.replace(slot, incarnation, what, stack)


def _last_known(slot: ActorSlot) -> tuple[str, str]:
    if slot.last is None:
        return "no stage yet", ""
    _, pulse = slot.last
    stages = ", ".join(stage for stage, _ in pulse.stages) or "no stage"
    return stages, f", waiting for {pulse.awaits}" if pulse.awaits else ""
