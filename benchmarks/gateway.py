"""What a step costs whose attempts a program makes through the gateway, beside the same step of our own loop.

    python benchmarks/gateway.py [--sizes tiny,30M,135M] [--steps 8] [--ways own,kept]

The same tasks, seeds and tokens each time; only who asks differs: our own agent, a program with a bare HTTP
client, OpenAI's SDK with one client for all attempts, and with a client for each. The run's own processor
time is what our side costs. What the program costs by itself is measured by letting it ask a server that
answers at once: no gateway can be cheaper than that. With a tiny model a step is over before an SDK has said
hello; with 30M parameters, or the layers of SmolLM2-135M, generation and the update take most of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

AGENT = """
import http.client, json, os, urllib.parse
from openai import OpenAI

CLIENT = OpenAI(api_key="-", base_url="http://127.0.0.1")

def score(solution_str, ground_truth):
    return solution_str.count("a") / max(1, len(solution_str))

def asked(client, task):
    messages = [{"role": "user", "content": task["question"]}]
    client.chat.completions.create(model="any", messages=messages)

def each(task):
    asked(OpenAI(), task)

def kept(task, policy):
    asked(CLIENT.with_options(base_url=policy["base_url"], api_key=policy["api_key"]), task)

def bare(task, policy):
    url = urllib.parse.urlsplit(policy["base_url"])
    messages = [{"role": "user", "content": task["question"]}]
    connection = http.client.HTTPConnection(url.hostname, url.port)
    headers = {"content-type": "application/json", "authorization": "Bearer " + policy["api_key"]}
    body = json.dumps({"model": "any", "messages": messages})
    connection.request("POST", url.path + "/chat/completions", body, headers)
    return json.loads(connection.getresponse().read()) and None
"""
WAYS = {
    "own": "our own loop",
    "bare": "a bare HTTP client",
    "kept": "OpenAI's SDK, one client",
    "each": "OpenAI's SDK, a client an attempt",
}
MIDDLE = ("model.layers=10", "model.width=512", "model.heads=8", "model.kv_heads=4", "model.ffn=1408")
SMOLLM2 = ("model.layers=30", "model.width=576", "model.heads=9", "model.kv_heads=3", "model.ffn=1536")


@dataclass(frozen=True)
class Size:
    """A model, and what is sampled from it in a step."""

    name: str
    prompts: int
    samples: int
    max_tokens: int
    settings: tuple[str, ...]

    @property
    def attempts(self) -> int:
        return self.prompts * self.samples


SIZES = {
    "tiny": Size("a tiny model", 8, 8, 32, ("run.threads=1",)),
    "30M": Size("30M parameters", 4, 4, 64, MIDDLE),
    "135M": Size("layers of SmolLM2-135M", 4, 4, 64, SMOLLM2),
}
WARM_UP = 2  # steps in which processes start
MEASURED = 200  # attempts of a program by itself


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
import os, sys, time
sys.path.insert(0, sys.argv[1])
import agent
url = sys.argv[3]
os.environ |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "-"}
work, policy = getattr(agent, sys.argv[2]), {"base_url": url, "api_key": "-"}
given = ({"question": "go"}, policy)[: work.__code__.co_argcount]
work(*given)
started = time.process_time()
for _ in range(int(sys.argv[4])):
    work(*given)
print((time.process_time() - started) / int(sys.argv[4]))
"""


def alone(folder: Path, name: str) -> float:
    """Processor seconds that a program takes for an attempt if it is answered at once."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _AtOnce)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    words = [sys.executable, "-c", ALONE, str(folder), name, f"http://127.0.0.1:{server.server_port}/v1"]
    found = subprocess.run([*words, str(MEASURED)], check=True, capture_output=True, text=True)
    server.shutdown()
    return float(found.stdout)


def steps(folder: Path, way: str, count: int, size: Size) -> list[dict[str, float]]:
    """The metrics of a run, without its first steps."""
    agent = "single_turn" if way == "own" else f"{folder}/agent.py:{way}"
    name = f"{way} {size.name}"
    words = [
        "task=reverse", f"run.dir={folder}", f"run.name={name}", f"train.steps={count + WARM_UP}",
        "eval.at_start=false", "task.held_out_size=4", f"reward.function={folder}/agent.py:score",
        f"rollout.agent={agent}", f"rollout.prompts={size.prompts}", f"rollout.samples={size.samples}",
        f"rollout.max_tokens={size.max_tokens}", *size.settings,
    ]  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "toolwright", "train", *words], check=True, stdout=subprocess.DEVNULL
    )
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines][WARM_UP:]


def compare(folder: Path, size: Size, ways: list[str], count: int) -> None:
    """Print a table: medians of the steps, and how many times our own loop's each step takes."""
    print(f"\n{size.name}: {size.attempts} attempts of {size.max_tokens} tokens, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.0f}, {time.strftime('%Y-%m-%d')}")  # fmt: skip
    print(
        "| who asks | a step | × our own | its sampling | our side, ms an attempt | program, ms an attempt |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    base = None
    for way in ways:
        rows = steps(folder, way, count, size)
        step, sampling, cores = (
            statistics.median(row[name] for row in rows)
            for name in ("time/total_s", "time/sample_s", "use/rollout.run_cores")
        )
        base = base or step
        program = "" if way == "own" else f"{1e3 * alone(folder, way):.1f}"
        ours = 1e3 * sampling * cores / size.attempts
        print(
            f"| {WAYS[way]} | {step:.2f} s | {step / base:.2f} | {sampling:.2f} s | {ours:.2f} | {program} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="tiny,30M", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--ways", default=",".join(WAYS), help="who asks, our own loop first")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "agent.py").write_text(AGENT)
        for name in given.sizes.split(","):
            compare(folder, SIZES[name], given.ways.split(","), given.steps)


if __name__ == "__main__":
    main()
