"""The alarm for an engine that drifts away from its learner."""

from __future__ import annotations

import math
import statistics
from collections import deque

REMEMBERED = 50  # steps that a new one is compared with
ENOUGH = 5  # of them, before they are
SUDDEN = 5.0  # times their median is far above them,
NOTICED = 0.2  # where it is this part of the limit at least
LOOK = "; docs/engines.md, The gap, says what to look at"


class GapAlarm:
    """Hears every step's mean |Δ log-probability|. A gap may be wrong from the start, or become so: a limit
    tells the one, the run's own past the other."""

    def __init__(self, limit: float, *, engine: str) -> None:
        self.limit, self.engine = limit, engine
        self.past: deque[float] = deque(maxlen=REMEMBERED)

    def heard(self, gap: float) -> str | None:
        """The warning, if there is one to give."""
        usual = statistics.median(self.past) if len(self.past) >= ENOUGH else None
        told = f"the {self.engine} engine's log-probabilities are {gap:.3g} from the learner's on average"
        if not math.isfinite(gap):
            return f"{told}: one of the two computes with numbers that are not finite{LOOK}"
        self.past.append(gap)
        if gap > self.limit:
            return f"{told}, beyond algorithm.correction.alarm={self.limit:g}{LOOK}"
        if usual is not None and gap > max(SUDDEN * usual, NOTICED * self.limit):
            return f"{told}, and were {usual:.3g} before{LOOK}"
        return None
