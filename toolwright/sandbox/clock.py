"""Measures a run's own time, whatever else the machine does.

It is the processor time of all its processes together, plus the time in which all of them slept. Waiting for
a processor does not count: on a busy machine a run takes longer, and ends in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from toolwright.sandbox import processes

LOOK_EVERY_S = 0.1
_LOOK_AT_MOST_EVERY_S = 0.005
# A worker that looks late does not know what the run did all that time.
_BELIEVED_S = 2 * LOOK_EVERY_S

TIMEOUT, DEADLINE, STARVED = "timeout", "deadline", "starved"


class Clock:
    """The clock of one run or one cell. It is outside the run, which could stop any clock of its own."""

    def __init__(self, job: dict[str, float], *, of_a_cell: bool = False) -> None:
        self.started = time.monotonic()
        self._limit_s = job["timeout_s"]
        self._wall_s = job["wall_s"]
        self._at_its_wall = DEADLINE if job["wall_is_deadline"] else STARVED
        self._looked_at = self.started
        self._asleep_s = 0.0
        self._used_s = 0.0
        # What a session used before this cell is known after the first look.
        self._used_before_s: float | None = None if of_a_cell else 0.0
        self._lost_s = 0.0
        self._seen: dict[int, tuple[float, float]] = {}

    def look(self, pids: list[int], waited_for: Sequence[int] = ()) -> None:
        """Reads the times of the run's processes. Call it often.

        `waited_for` are processes of a run that this one waits for: while they work, it does not sleep of its
        own will.
        """
        now = time.monotonic()
        since, self._looked_at = min(now - self._looked_at, _BELIEVED_S), now
        states, seen = set(), {}
        for pid in pids:
            runs, own_s, children_s = processes.times(pid)
            states.add(runs)
            seen[pid] = (own_s, children_s)
        # The time of a child that nobody waits for is lost, unless it was added to its parent's.
        gone_s = sum(own_s + below_s for pid, (own_s, below_s) in self._seen.items() if pid not in seen)
        added_s = sum(below_s - self._seen[pid][1] for pid, (_, below_s) in seen.items() if pid in self._seen)
        self._lost_s += max(0.0, gone_s - added_s)
        self._seen = seen
        used_s = self._lost_s + sum(own_s + below_s for own_s, below_s in seen.values())
        if self._used_before_s is None:
            self._used_before_s = used_s - since
        # A process that has ended does not sleep: its parent may be waiting for a processor to reap it.
        elif False in states and True not in states and not any(processes.times(p)[0] for p in waited_for):
            self._asleep_s += since
        self._used_s = max(self._used_s, used_s - self._used_before_s)

    def passed(self) -> str:
        """The limit that was passed, or nothing."""
        if self._used_s + self._asleep_s >= self._limit_s:
            return TIMEOUT
        return self._at_its_wall if time.monotonic() - self.started >= self._wall_s else ""

    def next_look_s(self) -> float:
        """Seconds until the next look: the earliest time at which a limit can be passed."""
        own_s = self._limit_s - self._used_s - self._asleep_s
        wall_s = self._wall_s - (time.monotonic() - self.started)
        return max(_LOOK_AT_MOST_EVERY_S, min(LOOK_EVERY_S, own_s, wall_s))
