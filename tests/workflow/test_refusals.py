"""What a search makes of a server that refuses, breaks down or is another one, and of a second search."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.json_server import PlainServer
from tests.waiting import wait_until
from toolwright.cli import main
from toolwright.trajectory import Task
from toolwright.workflow.executors import build_executor
from toolwright.workflow.launch import WorkflowConfig
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.program import single_call
from toolwright.workflow.proposers import ChatProposer, Editor, WorkflowState
from toolwright.workflow.record import records


@dataclass
class Server:
    url: str
    asked: list[Any] = field(default_factory=list)


@contextmanager
def answering(status: int, text: str) -> Iterator[Server]:
    """A server that says the same to everybody."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            good = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": usage}
            body = {**good, "choices": [choice]} if status == 200 else {"error": {"message": text}}
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing on the screen."""

    http = PlainServer(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{http.server_port}/v1")
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    return written(tmp_path / "sums.jsonl", offset=0)


def written(file: Path, *, offset: int) -> Path:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{n}+1?"}],
            "data_source": "numeric",
            "reward_model": {"ground_truth": str(n + 1 + offset)},
        }
        for n in range(20)
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def words(url: str, data: Path, folder: Path, name: str, *more: str) -> list[str]:
    return [
        *("workflow", "search", f"data=[{data}]", "executor.name=chat", "executor.chat.model=m"),
        *(f"executor.chat.base_url={url}", "executor.chat.price=1", "executor.chat.retries=0"),
        *("proposer.name=uniform", "search.tasks=4", "search.held_out=2", "search.runs=8"),
        *("search.guided.first=2", f"run.dir={folder}", f"run.name={name}", *more),
    ]


def test_a_provider_that_refuses_every_call_ends_the_search_with_its_reason(
    sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(400, "max_tokens is too large") as server:
        assert main(words(server.url, sums, tmp_path, "refused")) == 2
    said = capsys.readouterr().err
    assert "all 2 runs of the start failed" in said
    assert "max_tokens is too large" in said
    assert ExperiencePool(tmp_path / "refused/pool.db").spent()[0] == 0  # nothing to be found again


BAD_FILES = {
    "garbage.json": "{not json",
    "list.json": "[1, 2]",
    "operator.json": json.dumps(
        {
            "nodes": [{"name": "solve", "operator": "Custm", "inputs": {"input": [{"ref": "task.problem"}]}}],
            "output": [{"ref": "solve.response"}],
        }
    ),
    "broken.py": "class Workflow(:",
    "empty.yaml": "",
    "none.yaml": "workflows: {}",
    "bad.yaml": "workflows: [",
    "edit.yaml": "workflows: {mine: [add Nope after solve]}",
    "file.yaml": "workflows: {mine: {file: nothing.json}}",
}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("search.start=garbage.json", "garbage.json: this is not a workflow in JSON: Expecting property"),
        ("search.start=list.json", "expected an object with `nodes` and `output`, found list"),
        ("search.start=operator.json", "operator.json: the workflow cannot run: node 'solve': unknown"),
        ("search.start=operator.json", "did you mean 'Custom'?"),
        ("search.start=broken.py", "broken.py, line 1: it is not Python"),
        ("search.start=missing.json", "missing.json cannot be read: No such file or directory; expected"),
        ("search.portfolio=empty.yaml", "empty.yaml cannot be read: it lists no workflows"),
        ("search.portfolio=none.yaml", "search.portfolio=none searches without a portfolio"),
        ("search.portfolio=bad.yaml", "each name to a list of edits or to `file: PATH`"),
        ("search.portfolio=edit.yaml", "edit.yaml cannot be read: unknown operator 'Nope'"),
        ("search.portfolio=file.yaml", "nothing.json cannot be read: No such file"),
        ("search.portfolio=missing.yaml", "missing.yaml cannot be read: No such file"),
        ("search.select=gided", "did you mean 'guided'?"),
        ("search.strategy=guided", "use search.select"),
        ("search.runs=0", "expected a positive integer, found 0"),
        ("search.runs=1", "each needs 2 runs; set search.runs=4 or more"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_made(
    word: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in BAD_FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    quick = ["--config", "quick"] if "search.runs" not in word else []
    assert main(["workflow", "search", *quick, "run.dir=runs", "run.name=bad", word]) == 2
    printed = capsys.readouterr().err.strip()
    assert said in printed
    assert len(printed.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [("", "tasks of odd have no data_source"), ("mystery", "tasks of odd have data_source='mystery'")],
)
def test_tasks_without_a_scorer_are_refused_before_any_call(
    source: str, said: str, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "odd.jsonl"
    odd.write_text(sums.read_text().replace('"numeric"', json.dumps(source)))
    with answering(200, "1") as server:
        assert main(words(server.url, odd, tmp_path, "unscored")) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert "reward.function" not in printed  # a search has no such key
    assert not server.asked
    assert not (tmp_path / "unscored").exists()


def test_two_tasks_are_one_to_search_by_and_one_to_be_judged_by(
    sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = tmp_path / "two.jsonl"
    two.write_text("\n".join(sums.read_text().splitlines()[:2]))
    with answering(200, "1") as server:
        assert main(words(server.url, two, tmp_path, "few")) == 2
        assert "there is 1 task of two to search by, not 4: set search.tasks=1" in capsys.readouterr().err
        assert not server.asked
        sized = [word for word in words(server.url, two, tmp_path, "few") if "tasks=" not in word]
        sized = [word for word in sized if "held_out=" not in word]
        assert main([*sized, "search.tasks=1", "search.held_out=1"]) == 0


def test_a_server_that_breaks_down_is_one_sentence(
    sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(500, "out of memory") as server:
        assert main(words(server.url, sums, tmp_path, "broken")) == 2
    said = capsys.readouterr().err.strip()
    assert "run.resume=true" in said
    assert len(said.splitlines()) == 1


def test_a_shared_pool_does_not_return_another_servers_scores(sums: Path, tmp_path: Path) -> None:
    pool = f"search.pool={tmp_path / 'shared.db'}"
    with answering(200, "1") as first, answering(200, "unsure") as second:
        assert main(words(first.url, sums, tmp_path, "one", pool)) == 0
        assert main(words(second.url, sums, tmp_path, "two", pool)) == 0
        asked = len(first.asked)
        assert main(words(first.url, sums, tmp_path, "again", pool)) == 0
        assert second.asked
        assert len(first.asked) == asked  # the same search is still paid for once
    one, again = (records(tmp_path / name).popitem()[1] for name in ("one", "again"))
    assert again.rows == one.rows


def test_scores_are_kept_apart_by_everything_they_depend_on(sums: Path, tmp_path: Path) -> None:
    def setting(
        data: Path = sums, tasks: int = 4, seed: int = 0, temperature: float = 0.7, **chat: Any
    ) -> str:
        most = chat.pop("max_tokens", 64)
        told = {"model": "m", "base_url": "http://a/v1", "price": 1, **chat}
        config = WorkflowConfig.model_validate(
            {
                "data": [str(data)],
                "run": {"seed": seed},
                "search": {"tasks": tasks},
                "executor": {"name": "chat", "chat": told, "max_tokens": most, "temperature": temperature},
            }
        )
        return build_executor(config, str(data)).setting

    assert setting(tasks=3, seed=7) == setting()
    (tmp_path / "other").mkdir()
    others = [
        setting(base_url="http://b/v1"),
        setting(max_tokens=65),
        setting(temperature=0.5),
        setting(fields={"top_p": 0.5}),
        setting(model="n"),
        setting(written(sums, offset=1)),
    ]
    assert len({*others, setting(written(sums, offset=0))}) == len(others) + 1


def test_a_running_search_is_not_resumed_beside_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = [f"run.dir={tmp_path}", "run.name=busy"]
    slow = ["proposer.name=uniform", "executor.latency_s=2", "search.tasks=15"]
    command = ["workflow", "search", "--config", "quick", *slow, *where]
    first = subprocess.Popen([sys.executable, "-m", "toolwright.cli", *command], stdout=subprocess.DEVNULL)
    try:
        wait_until((tmp_path / "busy/pool.db").exists, "the first search to begin")
        assert main([*command, "run.resume=true"]) == 2
        assert f"is in use: process {first.pid} still runs it" in capsys.readouterr().err
    finally:
        first.kill()
        first.wait()


def test_the_proposer_sees_failing_tasks_operators_and_prompts() -> None:
    tasks = [Task(f"t{n}", [{"role": "user", "content": f"{n}+1?"}], str(n + 1), "numeric") for n in range(9)]
    editor = Editor(("Custom", "MdEnsemble"), {"SLOWLY": "Take a deep breath."})
    asking = ChatProposer(None, editor, None, search="s", tasks=tasks)  # type: ignore[arg-type]
    wrong = [("t3", "it took too long"), ("t5", ""), ("t6", ""), ("t7", "")]
    prompt = asking.prompt(WorkflowState("s", "math", single_call(), 0.5, 0.5, wrong=wrong))
    for said in (
        "3+1?",
        "right answer: 4",
        "it took too long",
        "6+1?",
        "Take a deep breath.",
        "most votes win",
    ):
        assert said in prompt
    assert "7+1?" not in prompt  # three are enough
