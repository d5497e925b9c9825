"""What the driver costs in a step, and what a step moves through Ray's object store.

    python benchmarks/transport.py [--trajectories 1024] [--tokens 1024] [--steps 8] [--json FILE]

An engine that costs nothing (its tokens are made beforehand), a reward that costs next to nothing and a
learner that only opens what it is sent: what is left of a step is transport. The driver deals 1,024 attempts,
hears of each, has them scored, selects, measures, and hands them to the policy by reference; the rollouts are
not recorded.

- driver: the wall time of a step in which no role was at work (their own stages tell), and the processor time
  of the driver's main thread, which other programs disturb less;
- bytes: what the object store has created in a step, by Ray's own count, over the payload: 4 bytes a token,
  4 a log-probability, and the text.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from toolwright.config.compose import Source, resolve
from toolwright.engines import Completion, Sampling
from toolwright.runtime.timeline import Event
from toolwright.tasks import TaskSet
from toolwright.trainer import roles
from toolwright.trajectory import Task

HERE = Path(__file__).resolve()
DRIVER_TARGET_S, BYTES_TARGET = 0.150, 1.3
PROMPT = "0123456789" * 4


class Instant:
    """Answers at once, with as many tokens as it is asked for."""

    exact, takes_weights, weights_version, context = True, True, 0, 1 << 20

    def __init__(self, config: Any, *, decoder: Any, tokenizer: Any, dtype: Any) -> None:
        self.made: dict[int, Completion] = {}

    async def generate(self, prompt: Sequence[int], sampling: Sampling, *, attempt: str) -> Completion:
        count = sampling.max_tokens
        if count not in self.made:
            tokens = [i % 1000 for i in range(count)]
            text = "0123456789abcdef" * (count // 16)
            self.made[count] = Completion(tokens, [-i / 1024 for i in range(count)], text, "length", 0)
        return self.made[count]

    def release(self, attempt: str) -> None: ...
    def rest(self) -> None: ...
    def publish(self, version: int) -> None:
        self.weights_version = version

    async def close(self) -> None: ...


class OpensOnly(roles.PolicyRole):
    def learn(
        self, step: int, exact: bool, baselines: dict[str, list[float]]
    ) -> tuple[dict[str, float], dict[str, Any]]:
        return {"policy/loss": float(len(self._taken))}, {}


def build(built: dict[str, Any], names: Sequence[str], role_config: Any, remote_role: Any, rank: Any) -> None:
    roles.PolicyRole = OpensOnly  # type: ignore[misc]
    roles.build_roles(built, names, roles.RoleContext(role_config, rank), remote_role)


def tasks(*, seed: int, held_out_size: int) -> TaskSet:
    made = [
        Task(f"t{i}", [{"role": "user", "content": PROMPT}], ground_truth="1", data_source="exact")
        for i in range(256)
    ]
    return TaskSet(train=made, held_out=[], scorer="exact", alphabet="0123456789abcdef")


def main() -> int:
    args = _arguments()
    found = measure(args.trajectories, args.tokens, args.steps)
    print(
        f"{args.trajectories:,} trajectories × {args.tokens:,} tokens, {args.steps} steps, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n"
        f"driver, wall without any role at work  {1e3 * found['driver_s']:7.1f} ms a step  "
        f"(target < {1e3 * DRIVER_TARGET_S:.0f})\n"
        f"driver, processor time of its thread   {1e3 * found['driver_cpu_s']:7.1f} ms a step\n"
        f"object store                           {found['bytes'] / 2**20:7.1f} MiB a step  "
        f"{found['ratio']:.2f} × payload (target ≤ {BYTES_TARGET})\n"
        f"step, all roles on this machine        {1e3 * found['step_s']:7.1f} ms"
    )
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n")
    return int(found["driver_cpu_s"] > DRIVER_TARGET_S or found["ratio"] > BYTES_TARGET)


def measure(trajectories: int, tokens: int, steps: int) -> dict[str, float]:
    from toolwright.runtime import cluster
    from toolwright.trainer.loop import TrainingLoop
    from toolwright.trainer.measures import of_sample

    whole = cluster.RayRoles
    cluster.RayRoles = lambda builder, *args: whole(f"{HERE}:build", *args)  # type: ignore
    samples, said = 8, tokens - 64
    words = [
        "runtime=ray",
        f"task.name={HERE}:tasks",
        f"engine.name={HERE}:Instant",
        f"engine.slots={trajectories}",
        "rollout.agent=single_turn",
        f"rollout.prompts={trajectories // samples}",
        f"rollout.samples={samples}",
        f"rollout.max_tokens={said}",
        "task.max_prompt_tokens=256",
        "model.layers=1",
        "model.width=32",
        f"model.context={2 * tokens}",
        "algorithm.kl.where=none",
        "runtime.heartbeat_timeout_s=300",
        "run.threads=1",
    ]
    trainer = TrainingLoop(resolve(Source(), words).config)  # type: ignore[arg-type]
    rows = []
    try:
        for step in range(1, steps + 3):
            trainer.roles.events()
            before, began, cpu = created_bytes(), time.time(), time.thread_time()
            sampled = trainer.sample(step)
            of_sample(sampled)
            trainer.learn(sampled, step)
            took, cpu = time.time() - began, time.thread_time() - cpu
            at_work = busy([e for e in trainer.roles.events() if e.started >= began - 0.001])
            moved = created_bytes() - before
            one = sampled.attempts[0]  # all are alike
            payload = trajectories * (
                4 * len(one.tokens) + 4 * one.sampled_tokens + sum(len(s.text) for s in one.segments)
            )
            rows.append((took - at_work, cpu, moved, moved / payload, took))
    finally:
        trainer.close()
    names = ("driver_s", "driver_cpu_s", "bytes", "ratio", "step_s")
    return {name: statistics.median(row[i] for row in rows[2:]) for i, name in enumerate(names)}


def busy(events: Sequence[Event]) -> float:
    """Seconds in which at least one role was at work."""
    total, end = 0.0, 0.0
    for event in sorted(events, key=lambda e: e.started):
        start, stop = max(event.started, end), event.started + event.seconds
        total += max(0.0, stop - start)
        end = max(end, stop)
    return total


def created_bytes() -> int:
    import ray
    from ray._private import internal_api

    # By its address: left to itself it asks whichever cluster was started last on this machine.
    state = internal_api.get_state_from_address(ray.get_runtime_context().gcs_address)
    return int(internal_api.get_memory_info_reply(state).store_stats.cumulative_created_bytes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
