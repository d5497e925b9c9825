"""What learns, as the driver asks it: the policy's ranks as one, and the critic. They are lost together.

Every call goes to all ranks with the same arguments, and the first one's answer is taken. A rank that dies
leaves the others waiting for it in the middle of an update, and a critic takes along what it alone had
learned: whichever is lost, all are ended, and the run goes back to where they were last saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import Any

import ray

from toolwright.failures import InfrastructureFailure
from toolwright.runtime.actors import ActorSlot, Lost, LostData, open_all
from toolwright.runtime.host import Rank
from toolwright.runtime.roles import LearnerLost

ROLES = {"policy", "critic"}  # what is lost with them cannot be asked of anybody else

PULSE_S = 5.0  # for one that lives to say so

Replace = Callable[[ActorSlot, int, str], None]


class Learners:
    """`replace` is told of each that was lost; it ends the process and makes it known."""

    def __init__(self, seats: Sequence[ActorSlot], *, patience_s: float, replace: Replace) -> None:
        self.seats = [seat for seat in seats if ROLES & set(seat.post.roles)]
        self.ranks = [seat for seat in self.seats if "policy" in seat.post.roles]
        self.patience_s, self.replace = patience_s, replace

    @property
    def sharded(self) -> bool:
        return len(self.ranks) > 1

    def number(self) -> None:
        """Each rank is told which of them it is, and where the first can be met."""
        if self.sharded:
            self.ranks[0].create()
            master = self.ranks[0].meeting_place()
            for index, seat in enumerate(self.ranks):
                seat.rank = Rank(index, len(self.ranks), master)

    def renew(self, pool: Executor) -> None:
        """New processes for all of them."""
        self._end()
        try:
            self.number()
            open_all(self.seats, pool)
        except Lost as error:
            raise self._lost(f"what learns did not come back: {error}") from None

    def ask(
        self,
        method: str,
        *arguments: Any,
        role: str = "policy",
        returns: int = 1,
        limit_s: float | None = None,
    ) -> Any:
        """The first rank's answer, once all have answered. Of several only the first part is fetched."""
        incarnations = [seat.incarnation for seat in self.ranks]
        sent = [seat.send(role, method, *arguments, returns=returns) for seat in self.ranks]
        refs = [ref if returns == 1 else ref[0] for ref in sent]
        with ExitStack() as awaited:
            for seat in self.ranks:
                awaited.enter_context(seat.awaited(f"{role}.{method}"))
            try:
                answers = self._gathered(refs, limit_s)
            except Lost as error:
                raise self._lost(f"the policy was lost in {method}: {error}") from None
            except InfrastructureFailure as error:
                raise self._lost(f"the policy cannot go on with {method}: {error}") from None
            except TimeoutError:
                what = f"has not answered {method} within {limit_s:g} s"
                for seat, incarnation in zip(self.ranks, incarnations, strict=True):
                    self.replace(seat, incarnation, what)
                raise self._lost(f"the policy {what}") from None
        return answers[0] if returns == 1 else (answers[0], *sent[0][1:])

    def fetched(self, ref: Any) -> Any:
        """The rest of an answer."""
        try:
            return self.ranks[0].result(ref)
        except (Lost, LostData) as error:
            raise self._lost(f"the policy was lost with what it had answered: {error}") from None

    def _gathered(self, refs: Sequence[Any], limit_s: float | None) -> list[Any]:
        """Every rank's answer; what one of them raises, as soon as it does. If another has died, that is why:
        the ones that waited for it are told by their connections, often before Ray knows."""
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
        """Whoever is no more is named; the others are only ended."""
        asked = [(seat, seat.incarnation, seat.pulse()) for seat in self.seats if seat.ready]
        if asked:
            ray.wait([ref for *_, ref in asked], num_returns=len(asked), timeout=PULSE_S)
        for seat, incarnation, ref in asked:
            if _gone(ref):
                self.replace(seat, incarnation, f"died; {what}")
        self._end()
        return LearnerLost(what)

    def _end(self) -> None:
        """Of those that are still there nothing is wanted any more."""
        for seat in self.seats:
            seat.give_up(seat.incarnation)
        for seat in self.seats:
            seat.end()


def _gone(ref: Any) -> bool:
    """Whether it was asked of a process that is no more."""
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
