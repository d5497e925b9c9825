"""`sums` learned by an agent of pydantic-ai through the gateway, beside our own loop.

    pip install 'pydantic-ai-slim[openai]'
    python benchmarks/any_agent.py [--seeds 0 1 2] [--steps 20] [--every 10] [--chart FILE.svg]

Each seed has its own warm start, the preset `demo_warm_start`. Both agents then train from it with the preset
`demo`: 8 prompts of 8 attempts a step, on one thread. The agent of pydantic-ai gets the address and the key,
and works out sums with a function of its own in place of our Python tool. The accuracy on 128 held-out sums
is compared. No setting was chosen by comparing the two.
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
from toolwright.interface.chart import MetricsChart
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
AGENTS = ("our own loop", "pydantic-ai")


def call(*words: str) -> None:
    """Run a command of toolwright quietly, or stop with the end of its output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        failed = toolwright(list(words)) != 0
    if failed:
        raise SystemExit(f"toolwright {' '.join(words)} failed:\n{output.getvalue()[-3000:]}")


def train(folder: Path, name: str, *words: str) -> list[dict[str, float]]:
    """Train from the warm start in `folder`, and return the metrics of the run."""
    preset = ["--config-name", "demo", "rollout.prompts=8", "task.held_out_size=128", "run.threads=1"]
    places = [f"model.path={folder}/warm/model", f"run.dir={folder}", f"run.name={name}"]
    call("train", *preset, *places, *words)
    return Metrics.read(folder / name / "metrics.jsonl")


def train_both(seed: int, steps: int, every: int) -> list[list[float]]:
    """Train both agents from one warm start and print a row each.

    Returns the accuracies of each agent in percent, one for every evaluation."""
    accuracies = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "agent.py").write_text(AGENT)
        seeded = [f"run.seed={seed}", "run.threads=1"]
        call("sft", "--config-name", "demo_warm_start", f"run.dir={folder}", "run.name=warm", *seeded)
        for agent in AGENTS:
            words = [f"run.seed={seed}", f"train.steps={steps}", f"eval.every={every}"]
            if agent == "pydantic-ai":
                words.append(f"rollout.agent={folder}/agent.py:run")
            started = time.perf_counter()
            rows = train(folder, agent.replace(" ", "-"), *words)
            seconds = time.perf_counter() - started
            key = "held_out/accuracy"
            accuracies.append([100 * row[key] for row in rows if key in row])
            faults = [max(row.get(key, 0.0) for row in rows) for key in FAULTS]
            cells = [str(seed), agent, *(f"{value:.1f} %" for value in accuracies[-1])]
            cells += [*(f"{value:g}" for value in faults), f"{seconds:.0f} s"]
            print(f"| {' | '.join(cells)} |", flush=True)
    return accuracies


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=10, help="steps between two evaluations")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="draw the means over the seeds")
    arguments = parser.parse_args()
    if arguments.steps % arguments.every:
        parser.error("--every must divide --steps")
    steps = range(0, arguments.steps + 1, arguments.every)
    columns = ["seed", "agent", *(f"step {step}" for step in steps), *FAULTS, "time"]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    by_seed = [train_both(seed, arguments.steps, arguments.every) for seed in arguments.seeds]
    rows = []
    for place, step in enumerate(steps):
        own, other = ([accuracies[agent][place] for accuracies in by_seed] for agent in (0, 1))
        means = dict(zip(AGENTS, (statistics.mean(own), statistics.mean(other)), strict=True))
        rows.append({"step": step, **{f"held_out/{agent}": mean for agent, mean in means.items()}})
        apart = [b - a for a, b in zip(own, other, strict=True)]
        print(f"step {step}: " + ", ".join(f"{agent} {mean:.1f} %" for agent, mean in means.items()))
        print(f"  apart by {statistics.mean(apart):+.1f} points ({min(apart):+.1f} to {max(apart):+.1f})")
    if arguments.chart is not None:
        MetricsChart(rows, [f"held_out/{agent}" for agent in AGENTS]).save(arguments.chart)


if __name__ == "__main__":
    main()
