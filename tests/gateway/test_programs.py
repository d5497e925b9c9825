"""Commands, functions and services as agents: what they leave is there for the reward, what fails is none."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.json_server import PlainServer
from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.rewards.item import final_turn, of_attempt
from toolwright.trajectory import Task, Trajectory

from .programs import native, tokenizer

# What an agent in the wild does, without the second that an SDK takes to import.
ASK = """
import json, os, sys, urllib.request

def post(path, body, key=None):
    url = os.environ["TOOLWRIGHT_URL"] + path if key is None else os.environ["TOOLWRIGHT_URL"].partition("/attempt/")[0] + path
    headers = {"content-type": "application/json", "authorization": f"Bearer {key or os.environ['OPENAI_API_KEY']}"}
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)

def ask(text):
    messages = [{"role": "user", "content": text}]
    return post("/v1/chat/completions", {"model": "m", "messages": messages})["choices"][0]["message"]["content"]
"""  # noqa: E501
TASK = Task("t", [{"role": "user", "content": "go"}], ground_truth="42", extra_info={"level": 3})


def run(agent: dict[str, Any] | str, *, count: int = 1, **config: Any) -> list[Trajectory]:
    engine = native()
    given = {"max_tokens": 8, "retries": 0, "timeout_s": 60, **config}
    rollout = Rollout(schema.RolloutConfig(agent=agent, **given), engine, tokenizer())

    async def attempt() -> list[Trajectory]:
        try:
            return await rollout.run([AttemptRequest(TASK, "g", i, i) for i in range(count)])
        finally:
            await rollout.close()
            await engine.close()

    return asyncio.run(attempt())


def command(folder: Path, source: str, *words: str) -> dict[str, Any]:
    file = folder / "agent.py"
    file.write_text(ASK + source)
    return {"command": [sys.executable, str(file), *words]}


def failure(trajectory: Trajectory) -> str:
    assert trajectory.failure is not None
    assert trajectory.reward is None
    return trajectory.failure.message


class TestCommand:
    def test_it_gets_its_task_and_leaves_its_answer(self, tmp_path: Path) -> None:
        source = (
            "task = json.load(sys.stdin)\n"
            "assert sys.argv[1] == task['question'] == 'go' and task['extra_info'] == {'level': 3}\n"
            "assert os.listdir('.') == [] and 'ground_truth' not in task\n"
            "ask(task['question']); print('a log', file=sys.stderr); print('it is 42')\n"
        )
        (trajectory,) = run(command(tmp_path, source, "{question}"))
        assert trajectory.failure is None
        assert trajectory.result is not None
        assert trajectory.result["exit_code"] == 0
        item = of_attempt(trajectory)
        assert item["solution_str"] == "it is 42"
        assert final_turn(item)["solution_str"] == "it is 42"

    def test_printed_output_may_be_a_log_instead_of_the_answer(self, tmp_path: Path) -> None:
        agent = {**command(tmp_path, "ask('go'); print('starting')"), "answer": "transcript"}
        (trajectory,) = run(agent)
        assert of_attempt(trajectory)["solution_str"] == trajectory.response

    def test_it_may_post_rewards_for_its_turns_and_a_result(self, tmp_path: Path) -> None:
        source = (
            "ask('one'); ask('two')\n"
            "post('/v1/reward', {'reward': 0.5, 'turn': 0}); post('/v1/reward', {'reward': 1})\n"
            "post('/v1/result', {'answer': 7, 'seen': [1]})\n"
        )
        (trajectory,) = run(command(tmp_path, source))
        assert [step.reward for step in trajectory.steps] == [0.5, 1.0]
        assert trajectory.result is not None
        assert trajectory.result["answer"] == "7"
        assert trajectory.result["posted"] == {"answer": 7, "seen": [1]}

    def test_a_crash_is_a_failure(self, tmp_path: Path) -> None:
        (trajectory,) = run(command(tmp_path, "ask('go'); raise SystemError('broken')"))
        assert "exited with 1" in failure(trajectory)
        assert "SystemError: broken" in failure(trajectory)

    def test_one_that_never_asks_is_a_failure(self, tmp_path: Path) -> None:
        (trajectory,) = run(command(tmp_path, "print(42)"))
        assert "without asking the policy" in failure(trajectory)

    def test_a_refused_call_is_named_by_the_failure(self, tmp_path: Path) -> None:
        source = "ask('go'); post('/v1/chat/completions', {'messages': []})"
        (trajectory,) = run(command(tmp_path, source))
        assert "its last call was refused: /v1/chat/completions" in failure(trajectory)

    def test_a_hang_ends_at_the_limit_and_nothing_is_left(self, tmp_path: Path) -> None:
        note = tmp_path / "pids"
        source = (
            "import subprocess, time\nask('go')\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
            " start_new_session=True)\n"
            f"open({str(note)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
            "time.sleep(600)\n"
        )
        (trajectory,) = run(command(tmp_path, source), timeout_s=12)
        assert "took longer than rollout.timeout_s=12 while waiting for the command" in failure(trajectory)
        assert not any(alive(int(pid)) for pid in note.read_text().split())

    def test_a_child_in_the_background_ends_with_it(self, tmp_path: Path) -> None:
        note = tmp_path / "pid"
        source = (
            "import subprocess\nask('go')\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
            f"open({str(note)!r}, 'w').write(str(child.pid))\n"
        )
        (trajectory,) = run(command(tmp_path, source))
        assert trajectory.failure is None
        assert not alive(int(note.read_text()))

    def test_a_daemon_that_left_its_session_ends_with_it(self, tmp_path: Path) -> None:
        note = tmp_path / "pid"
        source = (
            "import time\nask('go')\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    if os.fork() == 0:\n"
            f"        open({str(note)!r}, 'w').write(str(os.getpid()))\n"
            "        [os.close(n) for n in (0, 1, 2)]\n"
            "        time.sleep(600)\n"
            "    os._exit(0)\n"
            "os.wait()\n"
            f"while not os.path.exists({str(note)!r}): time.sleep(0.01)\n"
        )
        (trajectory,) = run(command(tmp_path, source))
        assert trajectory.failure is None
        assert not alive(int(note.read_text()))

    def test_a_crash_in_the_middle_of_a_stream_earns_nothing(self, tmp_path: Path) -> None:
        """Though it had given itself a reward before."""
        source = (
            "import http.client, signal, urllib.parse\nask('go')\npost('/v1/reward', {'reward': 1.0})\n"
            "url = urllib.parse.urlsplit(os.environ['TOOLWRIGHT_URL'])\n"
            "line = http.client.HTTPConnection(url.netloc)\n"
            "body = {'model': 'm', 'messages': [{'role': 'user', 'content': 'go'}], 'stream': True}\n"
            "line.request('POST', url.path + '/v1/chat/completions', json.dumps(body))\n"
            "line.getresponse().read(20)\nos.kill(os.getpid(), signal.SIGKILL)\n"
        )
        (trajectory,) = run(command(tmp_path, source))
        assert "exited with -9" in failure(trajectory)

    def test_a_flood_of_output_is_cut(self, tmp_path: Path) -> None:
        source = "ask('go'); sys.stdout.write('x' * (8 << 20)); print('end')"
        (trajectory,) = run(command(tmp_path, source))
        assert trajectory.result is not None
        assert len(trajectory.result["output"]) <= 64 << 10
        assert trajectory.result["output"].endswith("end\n")

    def test_a_flood_of_calls_ends_at_the_limit_of_turns(self, tmp_path: Path) -> None:
        (trajectory,) = run(command(tmp_path, "while True: ask('go')"), max_turns=3)
        assert trajectory.failure is None  # as an attempt of our own agent ends
        assert (trajectory.stop, trajectory.turns) == ("turns", 3)

    def test_attempts_wait_for_a_free_place(self, tmp_path: Path) -> None:
        agent = {**command(tmp_path, "ask('go')"), "concurrency": 1}
        made = run(agent, count=3)
        assert [t.failure for t in made] == [None] * 3

    def test_a_command_that_cannot_be_started_fails_at_once(self) -> None:
        with pytest.raises(UserError, match="there is no program 'no-such-program'"):
            run({"command": "no-such-program --now"})

    def test_a_missing_script_fails_at_once(self) -> None:
        with pytest.raises(UserError, match=r"there is no file 'my_agnt\.py' for python3 to run"):
            run({"command": "python3 my_agnt.py --fast"})

    def test_a_deterministic_agent_is_reproducible(self, tmp_path: Path) -> None:
        agent = command(tmp_path, "a = ask('go'); ask(a); ask('go')")
        first, again = (run(agent, count=2) for _ in range(2))
        for one, other in zip(first, again, strict=True):
            assert [s.tokens for s in one.segments] == [s.tokens for s in other.segments]
        assert first[0].tokens != first[1].tokens


class TestFunction:
    def test_it_is_called_with_its_task_and_what_it_returns_is_the_answer(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.py"
        file.write_text(ASK + "def run(task):\n    ask(task['question'])\n    return 42\n")
        made = run(f"{file}:run", count=6)
        assert [t.failure for t in made] == [None] * 6
        assert {of_attempt(t)["solution_str"] for t in made} == {"42"}

    def test_it_may_be_asynchronous_and_take_the_address(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.py"
        file.write_text(
            ASK + "async def run(task, policy):\n"
            "    assert policy['base_url'].endswith('/v1') and policy['api_key']\n"
            "    print('a log')\n    return ask('go') and None\n"
        )
        (trajectory,) = run({"function": f"{file}:run"})
        assert trajectory.failure is None
        assert of_attempt(trajectory)["solution_str"] == trajectory.response

    def test_an_exception_is_a_failure_and_the_next_attempt_is_made(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.py"
        file.write_text(
            ASK + "calls = []\ndef run(task):\n    ask('go')\n    calls.append(1)\n"
            "    if len(calls) == 1: raise ValueError('no luck')\n"
        )
        made = run({"function": f"{file}:run", "concurrency": 1}, count=2)
        assert "raised ValueError: no luck" in failure(made[0])
        assert made[1].failure is None

    def test_all_attempts_run_side_by_side_and_the_module_is_imported_once(self, tmp_path: Path) -> None:
        """With fewer at a time than it has rows, the engine would decode small batches one after another."""
        file, seen, imports = tmp_path / "mine.py", tmp_path / "seen", tmp_path / "imports"
        seen.mkdir()
        file.write_text(
            ASK + "import time\nif 'toolwright.gateway' not in sys.modules:\n"
            f"    open({str(imports)!r}, 'a').write('x')\n"
            f"def run(task):\n    open({str(seen)!r} + f'/{{os.getpid()}}', 'w')\n"
            f"    while len(os.listdir({str(seen)!r})) < 24: time.sleep(0.01)\n    ask('go')\n"
        )
        made = run(f"{file}:run", count=24)
        assert [t.failure for t in made] == [None] * 24
        assert imports.read_text() == "x"

    def test_one_that_ends_its_process_is_a_failure_and_the_next_is_made(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.py"
        file.write_text(ASK + "def run(task):\n    ask('go')\n    if task['id'] == 't': os._exit(3)\n")
        made = run({"function": f"{file}:run", "concurrency": 1}, count=2)
        assert "has ended" in failure(made[0])
        assert "has ended" in failure(made[1])

    @pytest.mark.slow
    def test_one_that_hangs_is_killed(self, tmp_path: Path) -> None:
        file, note = tmp_path / "mine.py", tmp_path / "pid"
        file.write_text(
            ASK + "import time\ndef run(task):\n    ask('go')\n"
            f"    open({str(note)!r}, 'w').write(f'{{os.getpid()}} {{os.getcwd()}}')\n    time.sleep(600)\n"
        )
        (trajectory,) = run(f"{file}:run", timeout_s=15)
        assert "took longer than" in failure(trajectory)
        pid, folder = note.read_text().split()
        assert not alive(int(pid))
        assert not Path(folder).exists()


class TestService:
    def test_its_answer_ends_the_attempt(self, service: Service) -> None:
        made = run({"url": service.url + "/answer"}, count=3)
        assert [t.failure for t in made] == [None] * 3
        assert {of_attempt(t)["solution_str"] for t in made} == {"41"}

    def test_a_later_call_can_end_the_attempt_instead(self, service: Service) -> None:
        (trajectory,) = run({"url": service.url + "/later"})
        assert trajectory.failure is None
        assert of_attempt(trajectory)["solution_str"] == "40"

    def test_one_that_breaks_is_a_failure_of_the_machine(self, service: Service) -> None:
        (trajectory,) = run({"url": service.url + "/break"})
        assert "answered 500: out of order" in failure(trajectory)
        assert trajectory.failure is not None
        assert trajectory.failure.kind == "infrastructure"

    def test_one_that_promises_and_never_posts_ends_at_the_limit(self, service: Service) -> None:
        (trajectory,) = run({"url": service.url + "/promise"}, timeout_s=3)
        assert "took longer than rollout.timeout_s=3" in failure(trajectory)

    def test_one_that_refuses_is_a_failure(self, service: Service) -> None:
        (trajectory,) = run({"url": service.url + "/refuse"})
        assert "answered 422: not today" in failure(trajectory)

    @pytest.mark.parametrize("url", ["localhost:9000/run", "http:///run", "ftp://127.0.0.1/run"])
    def test_an_invalid_address_fails_at_once(self, url: str) -> None:
        with pytest.raises(UserError, match=r"rollout\.agent\.url: expected an address such as http://"):
            run({"url": url})

    def test_one_that_is_not_there_may_be_tried_again(self) -> None:
        (trajectory,) = run({"url": "http://127.0.0.1:9/"})
        assert "does not answer" in failure(trajectory)
        assert trajectory.failure is not None
        assert trajectory.failure.kind == "infrastructure"


class Service:
    """A small agent behind HTTP."""

    def __init__(self) -> None:
        self.server = PlainServer(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/refuse":
            return self.reply(422, b"not today")
        if self.path == "/break":
            return self.reply(500, b"out of order")
        if self.path == "/promise":
            return self.reply(202, b"")
        if self.path == "/later":
            threading.Thread(target=self.later, args=[body]).start()
            return self.reply(202, b"")
        self.ask(body)
        return self.reply(200, orjson.dumps({"answer": 41}))

    def later(self, body: dict[str, Any]) -> None:
        self.ask(body)
        self.call(body, "/result", 40)

    def ask(self, body: dict[str, Any]) -> None:
        self.call(body, "/chat/completions", {"model": body["model"], "messages": body["task"]["prompt"]})

    def call(self, body: dict[str, Any], path: str, given: Any) -> None:
        headers = {"content-type": "application/json", "authorization": f"Bearer {body['api_key']}"}
        request = urllib.request.Request(body["base_url"] + path, orjson.dumps(given), headers)
        urllib.request.urlopen(request).read()

    def reply(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.server.shutdown()


def alive(pid: int) -> bool:
    """Also for a moment after it was killed: until its parent has noticed."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.05)
    return True
