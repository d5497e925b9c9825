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
    """Watches every step's mean |Δ log-probability|. A limit finds a gap that is wrong from the start; the
    run's own past finds one that grows."""

    def __init__(self, limit: float, *, engine: str) -> None:
        self.limit, self.engine = limit, engine
        self.past: deque[float] = deque(maxlen=REMEMBERED)

    def warning(self, gap: float) -> str | None:
        """A warning about this step's gap, if it deserves one."""
        usual = statistics.median(self.past) if len(self.past) >= ENOUGH else None
        found = f"the {self.engine} engine's log-probabilities are {gap:.3g} from the learner's on average"
        if not math.isfinite(gap):
            return f"{found}: one of the two computes with numbers that are not finite{LOOK}"
        self.past.append(gap)
        if gap > self.limit:
            return f"{found}, beyond algorithm.correction.alarm={self.limit:g}{LOOK}"
        if usual is not None and gap > max(SUDDEN * usual, NOTICED * self.limit):
            return f"{found}, and were {usual:.3g} before{LOOK}"
        return None
