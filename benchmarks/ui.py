"""How fast the web page answers over a large run, and what it holds in memory.

    python benchmarks/ui.py [--attempts 100000] [--tokens 2000] [--steps 100] [--folder FOLDER]

It writes a run folder of that many attempts with `record.save` (about 3 GB, once: FOLDER is used again if it
is there), starts `toolwright ui` over it and asks as the page does. `cold` is the first table after the
start, when every file's small columns are read; the others follow. Memory is the server's peak resident set.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from toolwright import record
from toolwright.observe.metrics import Metrics
from toolwright.trajectory import ROOT, Task, Trajectory

LIMITS = {"table": 1.0, "filter": 1.0, "attempt": 0.3, "memory_mb": 500.0}
SOURCE = Path(__file__).parents[1]
GROUP = 8  # attempts at one task
LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))


def make_run(folder: Path, *, attempts: int, tokens: int, steps: int) -> Path:
    """A run folder as a training leaves it, in about two minutes."""
    run = folder / "large"
    rollouts = run / "rollouts"
    rollouts.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    words = ["".join(generator.choice(LETTERS, generator.integers(2, 9))) for _ in range(5000)]
    metrics = Metrics(run / "metrics.jsonl") if not (run / "metrics.jsonl").exists() else None
    for step in range(1, steps + 1):
        path = rollouts / f"step_{step:06d}.parquet"
        if not path.exists():
            made, segments = make_step(generator, words, step, attempts // steps, tokens)
            record.save(path, made, segments=segments)
        if metrics is not None:
            values = {"reward/mean": step / steps, "time/total_s": 60.0, "throughput/tokens_per_s": 4e4}
            metrics.append(step, {**values, **{f"policy/m{i}": generator.random() for i in range(60)}})
    (run / "config.yaml").write_text(f"algorithm: {{name: grpo}}\ntrain: {{steps: {steps}}}\n")
    return run


def make_step(
    generator: np.random.Generator, words: list[str], step: int, count: int, tokens: int
) -> tuple[list[Trajectory], pa.Array]:
    """Attempts of a prompt, a turn, a tool's answer and a second turn; with text of its own for each."""
    made = []
    for number in range(count):
        name = f"task-{(step * count + number) // GROUP % 5000}"
        prompt = [
            {"role": "system", "content": " ".join(words[:300])},
            {"role": "user", "content": f"Solve {name}."},
        ]
        task = Task(name, prompt, ground_truth=name, data_source=f"set-{number % 5}")
        counts = {"tool_calls": float(number % 4), "tool_errors": float(number % 17 == 0)}
        timings = {"generate_s": generator.random(), "attempt_s": 1 + generator.random()}
        reward = float(generator.random() < step / 100)
        made.append(
            Trajectory(
                task,
                f"{step}.{number // GROUP}",
                number % GROUP,
                number,
                reward=reward,
                counts=counts,
                timings=timings,
                stop="eos" if number % 9 else "length",
                weights_version=step - 1,
            )
        )
    sizes = np.tile([tokens // 10, tokens * 4 // 10, tokens // 10, tokens - 6 * (tokens // 10)], count)
    total = int(sizes.sum())
    sampled = np.tile([False, True, False, True], count)
    spelled = generator.choice(words, total).tolist()
    starts, chances = np.cumsum([0, *sizes]), np.cumsum([0, *(sizes * sampled)])
    log_probs = -generator.exponential(0.5, int(chances[-1])).astype(np.float32).astype(float)
    tokens_of = pa.array(generator.integers(0, 150_000, total), pa.int32())
    flat = pa.StructArray.from_arrays(
        [
            pa.array(["prompt", "policy", "tool", "policy"] * count),
            pa.ListArray.from_arrays(pa.array(starts, pa.int32()), tokens_of),
            pa.ListArray.from_arrays(pa.array(chances, pa.int32()), pa.array(log_probs)),
            pa.array([" ".join(spelled[start:stop]) for start, stop in pairwise(starts)]),
            pa.nulls(4 * count, pa.float64()),
            pa.nulls(4 * count, pa.string()),
            pa.array(["[]"] * (4 * count)),
            pa.array([ROOT, 0, 1, 2] * count, pa.int64()),
            pa.array(["[]"] * (4 * count)),
            pa.array([[]] * (4 * count), pa.list_(pa.int32())),
        ],
        names=[field.name for field in record.SCHEMA.field("segments").type.value_type],
    )  # fmt: skip
    return made, pa.ListArray.from_arrays(pa.array(np.arange(0, 4 * count + 1, 4), pa.int32()), flat)


@contextmanager
def served(folder: Path, source: Path = SOURCE) -> Iterator[tuple[str, int]]:
    """The command as a user starts it, of this checkout: its address and process."""
    command = [sys.executable, "-m", "toolwright", "ui", str(folder.resolve()), "--port", "0", "--no-browser"]
    where = {**os.environ, "PYTHONPATH": str(source)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=where, cwd=source)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        yield next(word for word in line.split() if word.startswith("http")).rstrip("/"), process.pid
    finally:
        process.terminate()
        process.wait(30)


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=300) as answer:
        return json.load(answer)


def timed(work: Callable[[], Any], times: int = 1) -> float:
    """The slowest of several."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return max(taken)


def memory_mb(pid: int, what: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def measure_answers(folder: Path, run: Path) -> dict[str, float]:
    with served(folder) as (url, pid):
        api = f"{url}/api/runs/{run.name}"
        found = {"runs": timed(lambda: ask(f"{url}/api/runs")), "memory_at_start_mb": memory_mb(pid, "VmRSS")}
        found["cold_table"] = timed(lambda: ask(f"{api}/attempts"))
        total = ask(f"{api}/attempts?limit=1")["total"]
        steps = ask(f"{api}/attempts?limit=1")["facets"]["steps"]
        found["table"] = timed(lambda: ask(f"{api}/attempts?sort=reward&order=desc&limit=100"), 5)
        filters = "reward_min=0.5&tool_calls_min=2&stop=length&source=set-2&sort=length"
        found["filter"] = timed(lambda: ask(f"{api}/attempts?{filters}"), 5)
        found["sort_by_text"] = timed(lambda: ask(f"{api}/attempts?sort=question"), 2)
        draw = random.Random(0)
        most = total // len(steps)
        places = [(draw.choice(steps), draw.randrange(most)) for _ in range(20)]
        each = [timed(lambda p=place: ask(f"{api}/attempts/{p[0]}/{p[1]}")) for place in places]
        found["attempt_median"], found["attempt"] = statistics.median(each), max(each)
        found["group"] = timed(lambda: ask(f"{api}/groups/{steps[-1]}/{steps[-1]}.3"), 3)
        found["distribution"] = timed(lambda: ask(f"{api}/distributions?what=length&by=step"), 3)
        found["tasks"] = timed(lambda: ask(f"{api}/tasks?sort=change&order=desc"), 3)
        found["metrics"] = timed(lambda: ask(f"{api}/metrics"), 3)
        answer: dict[str, Any] = {}
        found["search"] = timed(lambda: answer.update(ask(f"{api}/attempts?q=no-such-word")))
        found["searched_in_it"] = answer["searched"]
        found["search_one_step"] = timed(lambda: ask(f"{api}/attempts?q=no-such-word&step={steps[-1]}"))
        found["memory_mb"] = memory_mb(pid, "VmHWM")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attempts", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="where the large run is made, and found again")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    arguments = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory() as own:
        folder = arguments.folder or Path(own)
        started = time.perf_counter()
        run = make_run(folder, attempts=arguments.attempts, tokens=arguments.tokens, steps=arguments.steps)
        size = sum(file.stat().st_size for file in run.rglob("*.parquet")) / 1e9
        print(f"{size:.2f} GB of attempts in {time.perf_counter() - started:.0f} s", flush=True)
        found = measure_answers(folder, run)
    for name, value in found.items():
        limit = f"   at most {LIMITS[name]:g}" if name in LIMITS else ""
        print(f"{name:<26}{value:>10.3f}{limit}")
    print(f"load after: {os.getloadavg()[0]:.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
