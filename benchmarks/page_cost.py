"""What an open page costs the training that it shows.

    python benchmarks/page_cost.py [--pairs 30] [--steps 3] [--browser] [--step-s 4]

Two trainings of `task=sums` go on in this process, with one seed: step by step they compute the same. A few
steps of one are taken with a page open on it, the same steps of the other without, in turn and many times;
which comes first alternates. The page is `toolwright ui` and a program that asks
what a browser asks: events, which bring the new metrics, and after each the first rows of the table. With
`--browser` it is Chromium on the curves instead, whose own work is printed too: it may well run on another
machine than the training. With `--step-s` every step lasts at least so long, as steps of larger models do:
the rest of it is waited for.

Other work on the machine moves the time of a step by far more than a percent, so processor time counts: `own`
is how much more the training itself takes while the page is open, `server` what the page's server takes, as
part of the training's. Their sum is what a machine without a free core would lose to the server. Each has its
95 % interval over the pairs (bootstrap), and its median, which a pair that other work disturbed does not
move. The wall's time is printed beside it.

The server looks by the clock, and so its part grows if other work slows down the training. `of a core` is
what it takes by the clock: the same as its part of a training that has a core to itself. `of the machine` is
what server, browser and the training's own extra work take together of all cores: the most by which an open
page slows down a training that uses every core.
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
from page import chromium, chromium_processes, cpu_seconds
from ui import ask, served

from toolwright import Trainer

LIMIT = 1.0  # percent
SETTLED_S = 5.0  # until a page that was just opened has loaded everything
SETTINGS = (
    *("task=sums", "task.held_out_size=8", "eval.every=0", "checkpoint.every=0", "run.threads=1"),
    "update.policy.lr=1e-9",  # so that steps stay alike
)


@dataclass(frozen=True)
class Turn:
    """Seconds that a few steps took."""

    own: float
    server: float
    browser: float
    wall: float


def browse(url: str) -> None:
    """Show the curves in Chromium, until standard input ends."""
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1280, "height": 860}).new_page()
        page.goto(f"{url}/#/curves?run=watched", wait_until="commit")
        page.wait_for_selector("main canvas", timeout=60_000)
        page.wait_for_timeout(1000 * SETTLED_S)
        print("open", flush=True)
        sys.stdin.read()


def follow(url: str) -> None:
    """Ask what an open page asks, until somebody ends this process."""
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
            if "attempts" in event["changed"]:
                ask(f"{api}/attempts?limit=200")


@contextmanager
def page(url: str, how: str) -> Iterator[int]:
    """Open a page; gives the process that holds it."""
    command = [sys.executable, __file__, how, url]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.stdin.close()
        if how == "--follow":
            process.kill()
        process.wait(60)
        process.stdout.close()


def take_turn(steps: Iterator[object], count: int, server: int, pages: int = 0, step_s: float = 0.0) -> Turn:
    browser = chromium_processes(pages) if pages else []
    own, theirs, wall = time.process_time(), cpu_seconds(server), time.perf_counter()
    drawn = cpu_seconds(*browser)
    for _ in range(count):
        begun = time.perf_counter()
        next(steps)
        time.sleep(max(0.0, begun + step_s - time.perf_counter()))
    return Turn(
        time.process_time() - own,
        cpu_seconds(server) - theirs,
        cpu_seconds(*browser) - drawn,
        time.perf_counter() - wall,
    )


def interval(values: list[float]) -> str:
    """The mean with its 95 % interval and the median, in percent."""
    draws = np.random.default_rng(0).choice(values, (10_000, len(values))).mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    told = f"{100 * statistics.fmean(values):6.2f} %   ({100 * low:.2f} to {100 * high:.2f})"
    return f"{told}   median {100 * statistics.median(values):.2f} %"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--steps", type=int, default=3, help="of a turn")
    parser.add_argument("--browser", action="store_true", help="open the page in Chromium")
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds that a step lasts at least")
    parser.add_argument("--follow", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--browse", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.follow or arguments.browse:
        (follow if arguments.follow else browse)(arguments.follow or arguments.browse)
        return
    how = "--browse" if arguments.browser else "--follow"
    total = arguments.pairs * arguments.steps + 4
    pairs: list[tuple[Turn, Turn]] = []
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        words = (*SETTINGS, f"run.dir={folder}", f"train.steps={total}")
        with (
            Trainer(*words, "run.name=watched") as watched_run,
            Trainer(*words, "run.name=alone") as lone_run,
            served(Path(folder)) as (url, server),
        ):
            runs = {True: iter(watched_run), False: iter(lone_run)}
            with page(url, "--follow"):
                for steps in runs.values():
                    take_turn(steps, 3, server)  # until everything is warm
            for number in range(arguments.pairs):
                turns = {}
                for is_open in (True, False) if number % 2 else (False, True):
                    if is_open:
                        with page(url, how) as pages:
                            turns[is_open] = take_turn(
                                runs[is_open], arguments.steps, server, pages, arguments.step_s
                            )
                    else:
                        turns[is_open] = take_turn(
                            runs[is_open], arguments.steps, server, step_s=arguments.step_s
                        )
                pairs.append((turns[True], turns[False]))
    print_costs(pairs, arguments)
    print(f"load after: {os.getloadavg()[0]:.1f}")


def print_costs(pairs: list[tuple[Turn, Turn]], arguments: argparse.Namespace) -> None:
    base = statistics.fmean(alone.own for _, alone in pairs)
    print(f"{len(pairs)} pairs of {arguments.steps} steps, {base / arguments.steps:.3f} s of processor each")
    print("own     ", interval([(watched.own - alone.own) / base for watched, alone in pairs]))
    print("server  ", interval([watched.server / base for watched, _ in pairs]))
    print("  of a core", interval([watched.server / watched.wall for watched, _ in pairs]))
    if arguments.browser:
        print("browser ", interval([watched.browser / base for watched, _ in pairs]))
        print("  of a core", interval([watched.browser / watched.wall for watched, _ in pairs]))
    both = [(watched.own + watched.server - alone.own) / base for watched, alone in pairs]
    print("together", interval(both), "" if arguments.step_s else f"  at most {LIMIT:g} %")
    cores = os.cpu_count() or 1
    taken = [
        (watched.own - alone.own + watched.server + watched.browser) / (watched.wall * cores)
        for watched, alone in pairs
    ]
    print("of the machine", interval(taken), f"  of {cores} cores, at most {LIMIT:g} %")
    wall = statistics.fmean(alone.wall for _, alone in pairs)
    print("wall    ", interval([(watched.wall - alone.wall) / wall for watched, alone in pairs]))


if __name__ == "__main__":
    main()
