"""How long attempts that wait for tools take together, beside what they must take.

    python benchmarks/tool_rollout.py

The real loop, toolbox and native engine with a tiny random model; a tool that sleeps. A random model does not
write calls, so the format reads one call from every turn but the last: all else is as in training.

One call: 16 attempts, each with one call of 0.25 s. The target is 0.35 s for all of them.
Turns: 64 attempts of 4 turns with a call between each two, their latencies log-normal (median 0.1 s, σ 1).
Ideal is the longest attempt's tool time, which no scheduler can shorten, plus the time that the engine takes
to sample the same turns when tools answer at once. The target is ideal ÷ actual of at least 0.8.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from toolwright.agents.attempt import Attempt
from toolwright.agents.formats import Offered
from toolwright.agents.formats.tags import Tags
from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.agents.tool_use import ToolUse
from toolwright.config import schema
from toolwright.engines.native.engine import NativeEngine
from toolwright.models.decoder import Decoder, Shape
from toolwright.models.tokenizer import Tokenizer
from toolwright.tools.call import Malformed, ToolRequest
from toolwright.trajectory import Task, Trajectory

ALPHABET = "0123456789+-*/=()<>. abcdefghijklmnopqrstuvwxyz"
TOKENS_A_TURN = 8  # about what a short call takes
HERE = Path(__file__).resolve()


async def sleep(seconds: float) -> str:
    """Waits, as a tool's server would keep us waiting."""
    await asyncio.sleep(seconds)
    return f"{seconds:.3f}"


class Sleepy(Tags):
    """Reads one call from whatever is said, for as long as the task has latencies left."""

    def __init__(self, latencies: list[float]) -> None:
        super().__init__()
        self.latencies = list(latencies)

    def read(self, said: str, offered: Offered) -> list[ToolRequest | Malformed]:
        return [ToolRequest("sleep", {"seconds": self.latencies.pop(0)})] if self.latencies else []


class Waiting(ToolUse):
    """A turn that reaches its limit would end the attempt; here every turn does, and a call follows it."""

    def _goes_on(self, attempt: Attempt, calls: Sequence[object]) -> bool:
        return bool(calls)


class Sleeper:
    """Tool use in which each attempt has its own latencies."""

    def __init__(self, config: schema.RolloutConfig, tools: object, tokenizer: Tokenizer) -> None:
        self.given = (config, tools, tokenizer)

    async def attempt(self, attempt: Attempt) -> None:
        agent = Waiting(*self.given)  # type: ignore[arg-type]
        agent.format = Sleepy(attempt.task.extra_info["latencies"])
        await agent.attempt(attempt)


@dataclass
class Measured:
    seconds: float
    trajectories: list[Trajectory]


def rollout() -> Rollout:
    torch.set_num_threads(1)
    tokenizer = Tokenizer.characters(ALPHABET)
    tokenizer.end_tokens = frozenset()  # every turn has the same length, so that runs can be compared
    shape = Shape(
        vocab=tokenizer.size, layers=3, width=96, heads=4, kv_heads=4, ffn=256, context=512, head_dim=24
    )
    decoder = Decoder(shape).initialise(0)
    engine = NativeEngine(schema.EngineConfig(), decoder=decoder, tokenizer=tokenizer, dtype=torch.float32)
    config = schema.RolloutConfig(
        agent=f"{HERE}:Sleeper", max_tokens=TOKENS_A_TURN, max_turns=16, tool_prompt="", stop=[]
    )
    return Rollout(config, engine, tokenizer, tools={"sleep": {"path": f"{HERE}:sleep"}})


async def measure(made: Rollout, latencies: list[list[float]], name: str) -> Measured:
    wanted = [
        AttemptRequest(
            Task(str(i), [{"role": "user", "content": "12+3"}], extra_info={"latencies": own}), name, i, i
        )
        for i, own in enumerate(latencies)
    ]
    started = time.perf_counter()
    trajectories = await made.run(wanted)
    seconds = time.perf_counter() - started
    for trajectory, own in zip(trajectories, latencies, strict=True):
        assert trajectory.failure is None, trajectory.failure
        assert trajectory.counts["tool_calls"] == len(own), trajectory.counts
    return Measured(seconds, trajectories)


async def main() -> int:
    made = rollout()
    await measure(made, [[0.0]] * 16, "warm")
    one = min([await measure(made, [[0.25]] * 16, f"one{i}") for i in range(3)], key=lambda m: m.seconds)
    rng = random.Random(0)
    drawn = [[0.1 * rng.lognormvariate(0.0, 1.0) for _ in range(3)] for _ in range(64)]
    await measure(made, [[0.0] * 3] * 64, "warm64")
    alone = await measure(made, [[0.0] * 3] * 64, "alone")
    many = await measure(made, drawn, "many")
    longest = max(map(sum, drawn))
    share = (longest + alone.seconds) / many.seconds
    await made.close()
    print(f"{'':44}{'measured':>10}{'target':>10}")
    print(f"{'16 attempts, one call of 0.25 s: seconds':44}{one.seconds:>10.3f}{'≤ 0.35':>10}")
    print(f"{'64 attempts × 4 turns, log-normal: seconds':44}{many.seconds:>10.3f}")
    print(f"{'  the longest attempt’s tools alone':44}{longest:>10.3f}")
    print(f"{'  the engine alone':44}{alone.seconds:>10.3f}")
    print(f"{'  one attempt after the other would be':44}{sum(map(sum, drawn)) + alone.seconds:>10.1f}")
    print(f"{'  ideal ÷ actual':44}{share:>10.2f}{'≥ 0.8':>10}")
    return 0 if one.seconds <= 0.35 and share >= 0.8 else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
