"""A watch over every actor: it is asked how it goes, and one that is dead, frozen or stuck is replaced."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ray

from toolwright.runtime.actors import ActorSlot

if TYPE_CHECKING:
    from collections.abc import Callable

    from toolwright.config import schema

log = logging.getLogger(__name__)

MOST_OFTEN_S, LEAST_OFTEN_S = 0.2, 2.0
STACK_S = 3.0  # for a stuck actor to tell where it is


class Supervisor(threading.Thread):
    """`replace(seat, incarnation, what, stack)` is called for each that cannot go on."""

    def __init__(
        self,
        seats: Mapping[str, ActorSlot],
        config: schema.Runtime,
        replace: Callable[[ActorSlot, int, str, str], None],
    ) -> None:
        super().__init__(name="supervisor", daemon=True)
        self.seats, self.config, self.replace = seats, config, replace
        self.every_s = max(MOST_OFTEN_S, min(LEAST_OFTEN_S, config.heartbeat_timeout_s / 5))
        self._asked: dict[tuple[str, int], tuple[Any, float]] = {}
        self._wake, self._over = threading.Event(), False

    def stop(self) -> None:
        self._over = True
        self._wake.set()
        self.join(timeout=10)

    def run(self) -> None:
        while not self._over:
            for seat in list(self.seats.values()):
                if seat.ready and not self._over:
                    try:
                        self._look(seat)
                    except Exception:
                        log.exception("the watch over %s failed", seat.name)
            self._wake.wait(self.every_s)
            self._wake.clear()

    def _look(self, seat: ActorSlot) -> None:
        key = (seat.name, seat.incarnation)
        now = time.monotonic()
        if key not in self._asked:
            self._asked[key] = (seat.pulse(), now)
            return
        ref, asked = self._asked[key]
        done, _ = ray.wait([ref], timeout=0)
        if not done:
            if now - asked > self.config.heartbeat_timeout_s:
                del self._asked[key]
                self._frozen(seat, key[1])
            return
        del self._asked[key]
        try:
            pulse = ray.get(ref)
        except ray.exceptions.RayError as error:
            self.replace(seat, key[1], f"died: {_reason(error)}", "")
            return
        seat.last = (now, pulse)
        for stage, seconds in pulse.stages:
            if seconds > self.config.stage_timeout_s:
                self._stuck(seat, key[1], stage, seconds, pulse.awaits)
                return
        self._asked[key] = (seat.pulse(), now)

    def _frozen(self, seat: ActorSlot, incarnation: int) -> None:
        stage, awaits = _last_known(seat)
        asked = f" while {', '.join(seat.waits)} is awaited of it" if seat.waits else ""
        what = (
            f"has not answered for runtime.heartbeat_timeout_s={self.config.heartbeat_timeout_s:g} s{asked}; "
            f"it was last seen in {stage}{awaits}; its stack cannot be had, it does not even answer that"
        )
        self.replace(seat, incarnation, what, "")

    def _stuck(self, seat: ActorSlot, incarnation: int, stage: str, seconds: float, awaits: str) -> None:
        stack = seat.stacks(STACK_S)
        awaited = f", waiting for {awaits}" if awaits else ""
        what = (
            f"has been in {stage} for {seconds:.0f} s{awaited}, longer than "
            f"runtime.stage_timeout_s={self.config.stage_timeout_s:g}"
        )
        self.replace(seat, incarnation, what, stack)


def _last_known(seat: ActorSlot) -> tuple[str, str]:
    if seat.last is None:
        return "no stage yet", ""
    _, pulse = seat.last
    stages = ", ".join(stage for stage, _ in pulse.stages) or "no stage"
    return stages, f", waiting for {pulse.awaits}" if pulse.awaits else ""


def _reason(error: BaseException) -> str:
    from toolwright.runtime.actors import _first_line

    return _first_line(error)
