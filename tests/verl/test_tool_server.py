"""`tool_config.*` and its kin against a plain tool server that is not ours: each key does what it says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agents.scripted import ScriptedEngine, saying
from tests.agents.templates import tokenizer
from tests.json_server import PlainServer
from tests.verl.conftest import BARE
from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.config import schema
from toolwright.tools.settings import settings_of
from toolwright.trajectory import Task, Trajectory
from toolwright.verl.translate import translate
from toolwright.verl.translation import Translation

TOOL, ROLLOUT = "actor_rollout_ref.rollout.tool_config", "actor_rollout_ref.rollout"
END = "<|im_end|>"
CALL = "<tool>6*7</tool>"


class ToolServer(PlainServer):
    """Answers a POST of code with the value of the expression, and one of queries with a document for each;
    says nothing of its health."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, dict[str, Any]]] = []
        self.fails = 0  # so many requests are answered with 503 first
        self.slow_s, self.busy, self.busiest = 0.0, 0, 0
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: ToolServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.seen.append((time.monotonic(), body))
            self.server.busy += 1
            self.server.busiest = max(self.server.busiest, self.server.busy)
            failing = len(self.server.seen) <= self.server.fails
        time.sleep(self.server.slow_s)
        with self.server.lock:
            self.server.busy -= 1
        if "queries" in body:
            found = [[{"document": {"contents": f"title\nabout {query}"}}] for query in body["queries"]]
            answer = json.dumps({"result": found}).encode()
        else:
            answer = json.dumps({"output": str(eval(body["code"]))}).encode()
        self.send_response(503 if failing else 200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ToolServer]:
    made = ToolServer()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def translated(*words: str) -> Translation:
    line = ["data.train_files=x.parquet", "actor_rollout_ref.model.path=m", *words]
    found = translate(line, machine=BARE, fit=True, files_may_miss=True)
    assert found.problems == []
    return found


def attempts(line: Translation, *turns: str, count: int = 1) -> list[Trajectory]:
    """Attempts with the tools and limits of the translated line, by a policy that says these turns."""
    own = {setting.ours: setting.value for setting in line.settings}
    own |= dict(word.split("=", 1) for word in line.ours)
    kept = ("agent", "max_turns", "call_format", "tool_timeout_s", "tool_tokens", "max_calls")
    rollout = {key: own[f"rollout.{key}"] for key in kept if f"rollout.{key}" in own}
    tools: dict[str, Any] = {}
    for key, value in own.items():
        if key.startswith("tools."):
            tools.setdefault(key.split(".")[1], {})[key.split(".")[2]] = value
    if "tool_config_path" in own:
        tools = settings_of({"tool_config_path": own["tool_config_path"]})
    return attempted(rollout, tools, *turns, count=count)


def attempted(
    rollout: dict[str, Any], tools: dict[str, Any], *turns: str, count: int = 1
) -> list[Trajectory]:
    made = tokenizer("chatml")
    config = schema.RolloutConfig(**rollout, retries=0, retry_pause_s=0.0, max_tokens=200)
    built = Rollout(config, ScriptedEngine(made, saying(made, *turns)), made, tools=tools)
    prompt = [{"role": "user", "content": "go"}]
    wanted = [AttemptRequest(Task(f"t{n}", prompt), f"g{n}", 0, n) for n in range(count)]

    async def run() -> list[Trajectory]:
        try:
            return await built.run(wanted)
        finally:
            await built.close()

    return asyncio.run(run())


def with_server(server: ToolServer, *more: str) -> Translation:
    words = (f"{TOOL}.enabled=true", f"{TOOL}.server_url={server.url}", f"{TOOL}.request_interval=0")
    return translated(*words, *more)


def answers(trajectory: Trajectory) -> list[str]:
    assert trajectory.failure is None, trajectory.failure
    return [segment.text for segment in trajectory.segments if segment.source == "tool"]


def test_enabled_and_server_url(server: ToolServer) -> None:
    (trajectory,) = attempts(with_server(server), CALL, f"it is 42{END}")
    assert "42" in answers(trajectory)[0]
    assert [body["code"] for _, body in server.seen] == ["6*7"]
    off = translated(f"{TOOL}.enabled=false", f"{TOOL}.server_url={server.url}")
    (trajectory,) = attempts(off, f"{CALL}{END}")
    assert answers(trajectory) == []


def test_max_tool_turns(server: ToolServer) -> None:
    (trajectory,) = attempts(with_server(server, f"{TOOL}.max_tool_turns=2"), CALL)
    assert len(server.seen) == 2
    assert trajectory.turns == 3


def test_max_retries_and_retry_delay(server: ToolServer) -> None:
    server.fails = 2
    words = (f"{TOOL}.max_retries=2", f"{TOOL}.retry_delay=0.2")
    (trajectory,) = attempts(with_server(server, *words), CALL, END)
    assert "42" in answers(trajectory)[0]
    times = [when for when, _ in server.seen]
    assert len(times) == 3
    assert min(b - a for a, b in pairwise(times)) >= 0.19
    server.seen.clear()
    server.fails = 9
    (trajectory,) = attempts(with_server(server, f"{TOOL}.max_retries=1", f"{TOOL}.retry_delay=0"), CALL, END)
    assert trajectory.failure is not None  # a server that lets us down is no score
    assert trajectory.failure.kind == "infrastructure"
    assert len(server.seen) == 2


def test_timeout(server: ToolServer) -> None:
    server.slow_s = 60.0
    words = (f"{TOOL}.timeout=0.3", f"{TOOL}.max_retries=0")
    (trajectory,) = attempts(with_server(server, *words), CALL, END)
    assert trajectory.failure is not None
    assert "gave no answer within 0.3 s" in trajectory.failure.message
    assert server.busy == 1  # it is still at it, and was not waited for
    server.slow_s = 0.0


def test_max_workers(server: ToolServer) -> None:
    server.slow_s = 0.1
    attempts(with_server(server, f"{TOOL}.max_workers=2"), CALL, END, count=6)
    assert len(server.seen) == 6
    assert server.busiest <= 2


def test_request_interval(server: ToolServer) -> None:
    began = time.monotonic()
    attempts(with_server(server, f"{TOOL}.request_interval=0.15"), CALL, END, count=3)
    times = sorted(when for when, _ in server.seen)
    # A busy machine sees requests late and then together, but never early.
    assert all(when - began >= 0.14 * place for place, when in enumerate(times))


def test_a_server_with_words_of_its_own(server: ToolServer) -> None:
    tools = {"python": {"url": server.url, "request": {"code": "{code}+1", "n": 3}, "response": "output"}}
    (trajectory,) = attempted({"agent": "tool_use", "call_format": "tags"}, tools, CALL, END)
    assert "43" in answers(trajectory)[0]
    assert server.seen[0][1] == {"code": "6*7+1", "n": 3}


PLACES = (f"{ROLLOUT}.multi_turn.tool_config_path", "data.tool_config_path", "toolwright.tool_config_path")


@pytest.mark.parametrize("place", PLACES)
def test_tool_config_path_in_its_three_places(place: str, server: ToolServer, tmp_path: Path) -> None:
    file = tmp_path / "tools.yaml"
    entry = {
        "class_name": "verl.tools.sandbox_fusion_tools.SandboxFusionTool",
        "config": {"sandbox_fusion_url": f"{server.url}/run_code"},
        "tool_schema": {"type": "function", "function": {"name": "code_interpreter", "description": "runs"}},
    }
    file.write_text(yaml.safe_dump({"tools": [entry]}))
    line = translated(f"{place}={file}", f"{ROLLOUT}.multi_turn.enable=True")
    call = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "6*7"}}</tool_call>'
    (trajectory,) = attempts(line, f"{call}{END}", END)
    assert "42" in answers(trajectory)[0]


def test_the_environment_sets_tools(server: ToolServer) -> None:
    script = Path(__file__).parents[2] / "examples" / "train_with_tools.sh"
    own = {"MODEL": "m", "TRAIN": "x.parquet", "ENABLE_TOOLS": "true", "TOOL_SERVER_URL": server.url}
    own |= {"MAX_TOOL_TURNS": "2", "PYTHON": "echo"}
    done = subprocess.run(
        ["bash", str(script)],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    words = done.stdout.replace('"', "").split()[2:]
    line = translated(*(word for word in words if not word.startswith("data.train_files")))
    (trajectory,) = attempts(line, CALL)
    assert trajectory.turns == 3
    assert len(server.seen) == 2


def test_enable_search_goes_before_tools(server: ToolServer) -> None:
    words = (f"{ROLLOUT}.enable_search=true", f"{ROLLOUT}.search_url={server.url}", f"{TOOL}.enabled=true")
    line = translated(*words)
    assert line.value("rollout.agent") == "search"
    assert any("search rollout is used" in note for note in line.notes)
    (trajectory,) = attempts(line, "<search>a river</search>", f"<answer>it</answer>{END}")
    assert "about a river" in answers(trajectory)[0]
    assert [body["queries"] for _, body in server.seen] == [["a river"]]
