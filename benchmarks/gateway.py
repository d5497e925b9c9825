"""What it costs that a program asks for the tokens through the gateway, beside our own loop.

    python benchmarks/gateway.py [--sizes tiny,30M,135M] [--rounds 3] [--ways own,bare,kept,each] [--profile]
    python benchmarks/gateway.py --sizes models/smollm2-135m

Attempts of several turns with a tool on offer, by a model with random weights or the one of a folder. The
tasks, seeds and tokens are the same each time, which is checked; only who asks differs: our own loop, a
program with a bare HTTP client, OpenAI's SDK with one client for all attempts, and with a client for each.
The ways take turns in one process. A step is sampling and an update on what was sampled, which is the same
for all and is therefore timed apart.

Processor time is of the run's own process, which our side of the gateway is in, and of the program's. What
the program costs by itself is measured with a server that answers at once: no gateway can be cheaper.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import torch

from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.engines.native.engine import NativeEngine
from toolwright.learner.objective import Objective
from toolwright.learner.policy import Policy
from toolwright.models import huggingface
from toolwright.models.decoder import Decoder, Shape
from toolwright.models.tokenizer import Tokenizer
from toolwright.tasks import ENVIRONMENTS, Observation, Outcome
from toolwright.trajectory import Task, Trajectory

TURNS = 3
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Finds what is known of something.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    },
}
QUESTION = "How many letters are in the name of the capital of the country number {}?"
RESULT = "Nothing is known of it. Look for something else, or answer."

AGENT = f"""
import http.client, json, urllib.parse
from openai import OpenAI

CLIENT = OpenAI(api_key="-", base_url="http://127.0.0.1")
TOOLS = [{json.dumps(TOOL)}]

def talk(task, ask):
    messages = [{{"role": "user", "content": task["question"]}}]
    for turn in range({TURNS}):
        if turn:
            messages.append({{"role": "user", "content": {RESULT!r}}})
        messages.append(ask(messages))

def by_sdk(client, task):
    def ask(messages):
        reply = client.chat.completions.create(model="any", messages=messages, tools=TOOLS)
        return {{"role": "assistant", "content": reply.choices[0].message.content}}
    talk(task, ask)

def each(task, policy):
    by_sdk(OpenAI(base_url=policy["base_url"], api_key=policy["api_key"]), task)

def kept(task, policy):
    by_sdk(CLIENT.with_options(base_url=policy["base_url"], api_key=policy["api_key"]), task)

def bare(task, policy):
    url = urllib.parse.urlsplit(policy["base_url"])
    connection = http.client.HTTPConnection(url.hostname, url.port)
    headers = {{"content-type": "application/json", "authorization": "Bearer " + policy["api_key"]}}
    def ask(messages):
        body = json.dumps({{"model": "any", "messages": messages, "tools": TOOLS}})
        connection.request("POST", url.path + "/chat/completions", body, headers)
        return json.loads(connection.getresponse().read())["choices"][0]["message"]
    talk(task, ask)
"""
WAYS = {
    "own": "our own loop",
    "bare": "a bare HTTP client",
    "kept": "OpenAI's SDK, one client",
    "each": "OpenAI's SDK, a client an attempt",
}


@ENVIRONMENTS.register("look_up")
class LookUp:
    """What the program says to the policy, said by our own loop."""

    inline = True

    def __init__(self) -> None:
        self.taken = 0

    def reset(self, task: Task) -> Observation:
        return Observation("", messages=task.prompt, tools=[TOOL])

    def step(self, action: str, calls: Any = ()) -> Outcome:
        self.taken += 1
        return Outcome(RESULT, done=self.taken == TURNS)

    def close(self) -> None: ...


@dataclass(frozen=True)
class Size:
    """A model, and what is sampled from it."""

    name: str
    prompts: int
    samples: int
    max_tokens: int
    threads: int
    shape: dict[str, int] = field(default_factory=dict)
    folder: str = ""

    @property
    def attempts(self) -> int:
        return self.prompts * self.samples

    @classmethod
    def of(cls, name: str) -> Size:
        return SIZES[name] if name in SIZES else cls(Path(name).name, 2, 8, 32, 2, folder=name)

    def model(self) -> tuple[Decoder, Tokenizer]:
        if self.folder:
            return huggingface.load(Path(self.folder)), Tokenizer.load(Path(self.folder))
        tokenizer = Tokenizer.bytes()
        shape = Shape(vocab=tokenizer.size, context=2048, **self.shape)  # type: ignore[arg-type]
        return Decoder(shape).initialise(0), tokenizer


def layers(count: int, width: int, heads: int, kv_heads: int, ffn: int) -> dict[str, int]:
    return {"layers": count, "width": width, "heads": heads, "kv_heads": kv_heads, "ffn": ffn,
            "head_dim": width // heads}  # fmt: skip


SIZES = {
    "tiny": Size("a tiny model", 8, 8, 32, 1, layers(4, 64, 4, 4, 176)),
    "30M": Size("30M parameters", 8, 8, 48, 2, layers(10, 512, 8, 4, 1408)),
    "135M": Size("layers of SmolLM2-135M", 2, 8, 32, 2, layers(30, 576, 9, 3, 1536)),
}
MEASURED = 200  # attempts of a program by itself


class Engine(NativeEngine):
    """Counts its passes."""

    passes = rows = read = 0

    def _decode(self) -> None:
        self.passes += 1
        self.rows += len(self.active)
        super()._decode()

    def _prefill(self, leaders: Any) -> None:
        self.read += sum(self._piece(leader) for leader in leaders)
        super()._prefill(leaders)


@dataclass
class Round:
    """What one round of sampling took."""

    wall: float
    ours: float  # processor time of this process
    program: float
    passes: int
    rows: float  # in a pass, on average
    read: int  # tokens of prompts that were computed


@dataclass
class Way:
    """One who asks, and its rounds."""

    name: str
    rollout: Rollout
    rounds: list[Round] = field(default_factory=list)

    def median(self, name: str) -> float:
        return statistics.median(getattr(one, name) for one in self.rounds)


def program_time() -> float:
    """Processor time of the processes below this one."""
    return sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children(recursive=True))


async def sample(way: Way, engine: Engine, requests: list[AttemptRequest]) -> list[Trajectory]:
    engine.passes = engine.rows = engine.read = 0
    started, ours, program = time.perf_counter(), time.process_time(), program_time()
    made = await way.rollout.run(requests)
    wall, ours, program = time.perf_counter() - started, time.process_time() - ours, program_time() - program
    passes = engine.passes
    way.rounds.append(Round(wall, ours, program, passes, engine.rows / max(1, passes), engine.read))
    engine.publish(engine.weights_version)  # nothing is left in the cache
    return made


def rollout(way: str, size: Size, engine: Engine, tokenizer: Tokenizer, folder: Path) -> Rollout:
    agent = "environment" if way == "own" else f"{folder}/agent.py:{way}"
    config = schema.RolloutConfig(
        agent=agent, max_tokens=size.max_tokens, max_turns=TURNS, call_format="hermes", timeout_s=600,
        retries=0,
    )  # fmt: skip
    return Rollout(config, engine, tokenizer)


async def compare(
    folder: Path, size: Size, names: list[str], rounds: int, *, profile: bool, update: bool
) -> None:
    """Print a table: medians of the rounds, and how many times our own loop's each takes."""
    torch.set_num_threads(size.threads)
    decoder, tokenizer = size.model()
    engine = Engine(
        schema.EngineConfig(slots=size.attempts), decoder=decoder, tokenizer=tokenizer, dtype=torch.float32
    )
    ways = [Way(name, rollout(name, size, engine, tokenizer, folder)) for name in names]
    requests = [
        AttemptRequest(
            Task(f"t{n}", [{"role": "user", "content": QUESTION.format(n)}],
                 extra_info={"environment": {"name": "look_up"}}),
            f"g{n}", i, 1000 * n + i,
        )
        for n in range(size.prompts) for i in range(size.samples)
    ]  # fmt: skip
    for way in ways:  # its processes start
        await sample(way, engine, [replace(one, sampling=(("max_tokens", 1),)) for one in requests])
        way.rounds.clear()
    expected: list[Any] = []
    for number in range(1, rounds + 1):
        for way in ways:
            profiler = cProfile.Profile() if profile and number == rounds else None
            if profiler:
                profiler.enable()
            made = await sample(way, engine, requests)
            if profiler:
                profiler.disable()
                print(f"\n{WAYS[way.name]}")
                pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
            failures = [one.failure for one in made if one.failure]
            assert not failures, failures[:3]
            sampled = [[step.tokens for step in one.steps] for one in made]
            expected = expected or sampled
            assert sampled == expected, f"{way.name} sampled other tokens"
    for way in ways:
        await way.rollout.close()
    await engine.close()
    wall, ours = update_time(decoder, made) if update else (0.0, 0.0)
    tokens = sum(len(step) for attempt in expected for step in attempt)
    print(f"\n{size.name}: {size.attempts} attempts of {TURNS} turns, {tokens} tokens, {os.cpu_count()} "
          f"cores, load {os.getloadavg()[0]:.0f}, {rounds} rounds, update {wall:.2f} s, "
          f"{time.strftime('%Y-%m-%d')}")  # fmt: skip
    columns = ("who asks", "sampling, wall", "× our own", "our process", "× our own",
               "a step × our own, wall", "our process", "more, ms a call", "program",
               "by itself, ms a call", "passes", "rows", "tokens read")  # fmt: skip
    print(row(columns))
    print(row(["---"] * len(columns)))
    base = ways[0]
    for way in ways:
        pairs = list(zip(way.rounds, base.rounds, strict=True))
        walls = [one.wall / own.wall for one, own in pairs]
        more = 1e3 * (way.median("ours") - base.median("ours")) / (size.attempts * TURNS)
        cells = [
            WAYS[way.name],
            f"{way.median('wall'):.2f} s",
            f"{statistics.median(walls):.2f} ({min(walls):.2f} to {max(walls):.2f})",
            f"{way.median('ours'):.2f} s",
            f"{statistics.median(one.ours / own.ours for one, own in pairs):.2f}",
            f"{statistics.median((one.wall + wall) / (own.wall + wall) for one, own in pairs):.2f}",
            f"{statistics.median((one.ours + ours) / (own.ours + ours) for one, own in pairs):.2f}",
            f"{more:.2f}",
            f"{way.median('program'):.2f} s",
            "" if way is base else f"{1e3 * by_itself(folder, way.name):.1f}",
            f"{way.median('passes'):.0f}",
            f"{way.median('rows'):.1f}",
            f"{way.median('read'):.0f}",
        ]
        print(row(cells), flush=True)


def update_time(decoder: Decoder, attempts: list[Trajectory]) -> tuple[float, float]:
    """Wall and processor time of an update on these attempts, the second one's: the first makes room."""
    policy = Policy(
        decoder, schema.OptimizerConfig(lr=1e-6), total_updates=2, temperature=1.0, micro_tokens=None,
        dtype=torch.float32,
    )  # fmt: skip
    batch = Batch.pack(attempts)
    batch.columns["advantages"] = torch.ones(sum(batch.action_lengths))
    batch.columns["old_log_prob"] = batch.columns["sampled_log_prob"]
    for _ in range(2):
        started, ours = time.perf_counter(), time.process_time()
        policy.update(batch, Objective(schema.Algorithm(), norm_tokens=1))
    return time.perf_counter() - started, time.process_time() - ours


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


class _AtOnce(BaseHTTPRequestHandler):
    """Answers every question with the same words."""

    protocol_version = "HTTP/1.1"
    reply = json.dumps({"id": "x", "object": "chat.completion", "created": 0, "model": "any", "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a" * 32}}
    ]}).encode()  # fmt: skip

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(self.reply)))
        self.end_headers()
        self.wfile.write(self.reply)


ALONE = """
import sys, time
sys.path.insert(0, sys.argv[1])
import agent
work = getattr(agent, sys.argv[2])
given = {"question": "go"}, {"base_url": sys.argv[3], "api_key": "-"}
work(*given)
started = time.process_time()
for _ in range(int(sys.argv[4])):
    work(*given)
print((time.process_time() - started) / int(sys.argv[4]))
"""


def by_itself(folder: Path, name: str) -> float:
    """Processor seconds that a program takes for a call if it is answered at once."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _AtOnce)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    words = [sys.executable, "-c", ALONE, str(folder), name, f"http://127.0.0.1:{server.server_port}/v1"]
    found = subprocess.run([*words, str(MEASURED)], check=True, capture_output=True, text=True)
    server.shutdown()
    return float(found.stdout) / TURNS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="tiny,30M", help=f"of {', '.join(SIZES)}, or folders of models")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", default=",".join(WAYS), help="who asks, our own loop first")
    parser.add_argument("--profile", action="store_true", help="print where the last rounds' time went")
    parser.add_argument("--no-update", action="store_true", help="sampling alone, in place of a step")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "agent.py").write_text(AGENT)
        for name in given.sizes.split(","):
            ways = given.ways.split(",")
            asyncio.run(compare(folder, Size.of(name), ways, given.rounds, profile=given.profile,
                                update=not given.no_update))  # fmt: skip


if __name__ == "__main__":
    main()
