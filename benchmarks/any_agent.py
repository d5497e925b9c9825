"""`sums` learned by an agent of pydantic-ai through the gateway, beside our own loop.

    pip install 'pydantic-ai-slim[openai]'
    python benchmarks/any_agent.py [--seeds 0 1 2] [--steps 20]

Each seed has a warm start of its own, the preset `demo_warm_start`. Both then train from it with the preset
`demo`, 8 prompts of 8 attempts a step, on one thread. The agent of pydantic-ai is told the address and the
key, and works sums out by a function of its own in place of our Python tool. Compared is the accuracy on 128
held-out sums. No setting was chosen by comparing the two.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from toolwright.cli import main as toolwright
from toolwright.observe.metrics import Metrics

AGENT = '''
import re
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def python(code: str) -> str:
    """Run code.

    Args:
        code: A sum to print.
    """
    found = re.fullmatch(r"print\\((\\d+)([-+*])(\\d+)\\)", code.strip())
    if found is None:
        return "SyntaxError: invalid syntax"
    a, b = int(found[1]), int(found[3])
    return str({"+": a + b, "-": a - b, "*": a * b}[found[2]])


async def run(task, policy):
    provider = OpenAIProvider(base_url=policy["base_url"], api_key=policy["api_key"])
    agent = Agent(OpenAIChatModel(policy["model"], provider=provider), tools=[python])
    return (await agent.run(task["question"])).output
'''
FAULTS = ("attempts/branches", "attempts/failed", "gap/abs_max")  # the most in any step
EVERY = 10  # steps between two evaluations


def called(*words: str) -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        failed = toolwright(list(words)) != 0
    if failed:
        raise SystemExit(f"toolwright {' '.join(words)} failed:\n{said.getvalue()[-3000:]}")


def trained(folder: Path, name: str, steps: int, *own: str) -> list[dict[str, float]]:
    """Return the metrics of a run from the warm start of `folder`."""
    words = ["rollout.prompts=8", f"train.steps={steps}", f"eval.every={EVERY}", "run.threads=1"]
    where = [f"model.path={folder}/warm/model", f"run.dir={folder}", f"run.name={name}"]
    called("train", "--config-name", "demo", *words, *where, "task.held_out_size=128", *own)
    return Metrics.read(folder / name / "metrics.jsonl")


def accuracies(rows: list[dict[str, float]]) -> list[float]:
    return [100 * row["held_out/accuracy"] for row in rows if "held_out/accuracy" in row]


def one_seed(seed: int, steps: int) -> tuple[list[float], list[float]]:
    """Train both from one warm start, print a row each, and return their accuracies at each evaluation."""
    found = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "agent.py").write_text(AGENT)
        warm = [f"run.dir={folder}", "run.name=warm", "run.threads=1", f"run.seed={seed}"]
        called("sft", "--config-name", "demo_warm_start", *warm)
        agents = {"our own loop": [], "pydantic-ai": [f"rollout.agent={folder}/agent.py:run"]}
        for number, (name, own) in enumerate(agents.items()):
            started = time.perf_counter()
            rows = trained(folder, f"run{number}", steps, f"run.seed={seed}", *own)
            found.append(accuracies(rows))
            cells = [str(seed), name, *(f"{value:.1f} %" for value in found[-1])]
            most = [max(row.get(key, 0.0) for row in rows) for key in FAULTS]
            cells += [*(f"{value:g}" for value in most), f"{time.perf_counter() - started:.0f} s"]
            print(f"| {' | '.join(cells)} |", flush=True)
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    at = [f"step {step}" for step in range(0, given.steps + 1, EVERY)]
    columns = ["seed", "who asks", *at, *FAULTS, "time"]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    pairs = [one_seed(seed, given.steps) for seed in given.seeds]
    for place, name in enumerate(at):
        own, other = ([pair[side][place] for pair in pairs] for side in (0, 1))
        means = statistics.mean(own), statistics.mean(other)
        apart = [b - a for a, b in zip(own, other, strict=True)]
        print(f"{name}: our own loop {means[0]:.1f} %, pydantic-ai {means[1]:.1f} %")
        print(f"  apart by {means[1] - means[0]:+.1f} points ({min(apart):+.1f} to {max(apart):+.1f})")


if __name__ == "__main__":
    main()
