"""What trackers cost a run: one run in which stretches of ten steps are tracked and not tracked in turn.

python benchmarks/trackers.py --trackers tensorboard wandb trackio
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from toolwright.config.compose import Source, resolve
from toolwright.config.schema import Config
from toolwright.observe.tracking import Tracking
from toolwright.runtime.reaper import reap_children
from toolwright.trainer.loop import TrainingLoop

STRETCH = 10
tell, told_s = Tracking.step, list[float]()


def every_second_stretch(tracking: Tracking, number: int, metrics: Mapping[str, Any]) -> None:
    if is_tracked(number):
        started = time.perf_counter()
        tell(tracking, number, metrics)
        told_s.append(time.perf_counter() - started)


def is_tracked(number: int) -> bool:
    return (number - 1) // STRETCH % 2 == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trackers", nargs="+", default=["tensorboard"])
    parser.add_argument("--steps", type=int, default=80)
    arguments = parser.parse_args()
    os.environ.setdefault("WANDB_MODE", "offline")
    with tempfile.TemporaryDirectory() as place:
        os.environ.setdefault("TRACKIO_DIR", str(Path(place) / "trackio"))
        words = [f"trackers=[{','.join(arguments.trackers)}]", f"run.dir={place}", "task=sums"]
        words += [f"train.steps={arguments.steps}", "eval.every=0", "task.held_out_size=8", "run.threads=1"]
        config = resolve(Source(), words).config
        assert isinstance(config, Config)
        Tracking.step = every_second_stretch  # type: ignore[method-assign]
        with reap_children(), closing(TrainingLoop(config)) as loop:
            steps = [(step.number, step.metrics["time/total_s"]) for step in loop.steps()]
    first = steps[2 * STRETCH :]  # the processes of the trackers start meanwhile
    tracked_s = median(seconds for number, seconds in first if is_tracked(number))
    other_s = median(seconds for number, seconds in first if not is_tracked(number))
    print(f"a step, tracked by {', '.join(arguments.trackers)}: {tracked_s * 1000:.1f} ms (median)")
    print(f"a step, not tracked: {other_s * 1000:.1f} ms (median)")
    print(f"telling the trackers: {median(told_s) * 1e6:.0f} µs (median), {max(told_s) * 1e6:.0f} µs (most)")


if __name__ == "__main__":
    main()
