"""What an open page costs the training that it shows.

    python benchmarks/page_cost.py [--pairs 30] [--steps 3]

One training of `task=sums` goes on in this process. For a few steps a page is open on it, for as many none
is, in turn and many times; which comes first alternates. The page is `toolwright ui` and a program that asks
what a browser asks: events, and after each step the new metrics and the first rows of the table.

Other work on the machine moves the time of a step by far more than a percent, so processor time counts: `own`
is how much more the training itself takes while the page is open, `server` what the page's server takes, as
part of the training's. Their sum is what a machine without a free core would lose. Each has its 95 % interval
over the pairs (bootstrap). The wall's time is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ui import ask, served

from toolwright import Trainer

LIMIT = 1.0  # percent
SETTINGS = (
    *("task=sums", "task.held_out_size=8", "eval.every=0", "checkpoint.every=0", "run.threads=1"),
    "update.policy.lr=1e-9",  # so that steps stay alike
)


@dataclass(frozen=True)
class Turn:
    """Seconds that a few steps took."""

    own: float
    server: float
    wall: float


def follow(url: str) -> None:
    """Ask what an open page asks, until somebody ends this process."""
    rows: dict[str, int] = {}
    with urllib.request.urlopen(f"{url}/api/events", timeout=600) as events:
        for run in ask(f"{url}/api/runs")["runs"]:  # what a page that was open all the time has seen already
            ask(f"{url}/api/runs/{run['name']}/attempts?limit=200")
        print("open", flush=True)
        for line in events:
            if not line.startswith(b"data: ") or b'"changed"' not in line:
                continue
            event = json.loads(line[6:])
            name = event["run"]["name"]
            api = f"{url}/api/runs/{urllib.parse.quote(name, safe='')}"
            if "metrics" in event["changed"]:
                rows[name] = ask(f"{api}/metrics?since={rows.get(name, 0)}")["rows"]
            if "attempts" in event["changed"]:
                ask(f"{api}/attempts?limit=200")


@contextmanager
def page(url: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, __file__, "--follow", url], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def take_turn(steps: Iterator[object], count: int, server: int) -> Turn:
    own, theirs, wall = time.process_time(), cpu_seconds(server), time.perf_counter()
    for _ in range(count):
        next(steps)
    return Turn(time.process_time() - own, cpu_seconds(server) - theirs, time.perf_counter() - wall)


def interval(values: list[float]) -> str:
    """The mean with its 95 % interval, in percent."""
    draws = np.random.default_rng(0).choice(values, (10_000, len(values))).mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return f"{100 * statistics.fmean(values):6.2f} %   ({100 * low:.2f} to {100 * high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--steps", type=int, default=3, help="of a turn")
    parser.add_argument("--follow", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.follow:
        follow(arguments.follow)
        return
    total = 2 * arguments.pairs * arguments.steps + 4
    pairs: list[tuple[Turn, Turn]] = []
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        words = (*SETTINGS, f"run.dir={folder}", "run.name=watched", f"train.steps={total}")
        with Trainer(*words) as trainer, served(Path(folder)) as (url, server):
            steps = iter(trainer)
            with page(url):
                take_turn(steps, 3, server)  # until everything is warm
            for number in range(arguments.pairs):
                turns = {}
                for is_open in (True, False) if number % 2 else (False, True):
                    if is_open:
                        with page(url):
                            turns[is_open] = take_turn(steps, arguments.steps, server)
                    else:
                        turns[is_open] = take_turn(steps, arguments.steps, server)
                pairs.append((turns[True], turns[False]))
    base = statistics.fmean(alone.own for _, alone in pairs)
    print(f"{len(pairs)} pairs of {arguments.steps} steps, {base / arguments.steps:.3f} s of processor each")
    print("own     ", interval([(watched.own - alone.own) / base for watched, alone in pairs]))
    print("server  ", interval([watched.server / base for watched, _ in pairs]))
    both = [(watched.own + watched.server - alone.own) / base for watched, alone in pairs]
    print("together", interval(both), f"  at most {LIMIT:g} %")
    wall = statistics.fmean(alone.wall for _, alone in pairs)
    print("wall    ", interval([(watched.wall - alone.wall) / wall for watched, alone in pairs]))
    print(f"load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
