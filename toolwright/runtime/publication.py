"""Publishes weights to rollout workers: one broadcast, which every worker acknowledges.

A worker that does not answer in time, or answers with another checksum than the policy's, samples nothing
more. In the first case it is replaced and loads the weights before it works again. In the second case the run
ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from toolwright.failures import UserError
from toolwright.runtime.actors import ActorSlot, Lost
from toolwright.runtime.learners import RayLearners

if TYPE_CHECKING:
    from toolwright.config import schema

Replace = Callable[[ActorSlot, int, str], None]


class Publication:
    """The current weights. `lock` is held while they are replaced, so that no worker starts meanwhile."""

    def __init__(self, config: schema.Runtime, replace: Replace) -> None:
        self.limit_s, self.replace = config.publish_timeout_s, replace
        self.version, self.checksum = 0, 0
        self.lock = threading.Lock()
        self._weights: Any = None

    def publish(self, version: int, learners: RayLearners, workers: Sequence[ActorSlot]) -> None:
        """Send the weights to all workers that are ready. The others load them when they return."""
        with self.lock:
            self.checksum, self._weights = learners.ask("weights", version, returns=2, limit_s=self.limit_s)
            self.version = version
            ready = [slot for slot in workers if slot.ready]
            sent = [(slot, slot.incarnation, slot.send("rollout", "load", self._weights)) for slot in ready]
            limit = time.monotonic() + self.limit_s
            for slot, incarnation, ref in sent:
                try:
                    self._compare(slot, slot.result(ref, max(0.0, limit - time.monotonic())))
                except TimeoutError:
                    self.replace(slot, incarnation, self._late)
                except Lost:
                    self.replace(slot, incarnation, f"was lost while it took weights of version {version}")

    def publish_in_place(self, version: int, learners: RayLearners) -> None:
        """Announce weights to an engine that uses the policy's own tensors. Nothing is sent."""
        learners.ask("publish", version, role="rollout", limit_s=self.limit_s)
        self.version = version

    def load_into(self, slot: ActorSlot) -> None:
        """Load the weights into a new rollout worker before it samples."""
        if self._weights is None:
            return
        ref = slot.send("rollout", "load", self._weights, early=True)
        try:
            self._compare(slot, slot.result(ref, self.limit_s))
        except TimeoutError:
            raise Lost(f"it {self._late}") from None

    def forget(self) -> None:
        self._weights = None

    @property
    def _late(self) -> str:
        return (
            f"did not take weights of version {self.version} within "
            f"runtime.publish_timeout_s={self.limit_s:g} s"
        )

    def _compare(self, slot: ActorSlot, found: int) -> None:
        if found != self.checksum:
            raise UserError(
                f"weights of version {self.version} arrived damaged in {slot.name}: their checksum is "
                f"{found:x}, the policy's {self.checksum:x}. The memory or network of {slot.described} may "
                "be faulty: remove that node, then continue with run.resume=true"
            )
