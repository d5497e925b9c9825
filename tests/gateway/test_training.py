"""A run whose attempts a program makes: it learns what a run with our own agent learns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import alive, wait_until
from toolwright.cli import main
from toolwright.observe.rollouts import files, read

SMALL = (
    "task=reverse",
    "rollout.prompts=4",
    "rollout.samples=4",
    "task.held_out_size=4",
    "model.layers=1",
    "eval.at_start=false",
    "run.threads=1",
)
SDK = """
from openai import OpenAI

def score(solution_str, ground_truth):
    return solution_str.count("a") / max(1, len(solution_str))

def run(task):
    client = OpenAI()
    messages = [{"role": "user", "content": task["question"]}]
    client.chat.completions.create(model="any", messages=messages)

def twice(task):
    client = OpenAI()
    for text in (task["question"], "again"):
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": text}])
"""


def train(folder: Path, name: str, *words: str, steps: int) -> list[dict[str, Any]]:
    scored = f"reward.function={folder / 'agent.py'}:score"  # which random answers differ by
    line = ["train", *SMALL, scored, f"run.dir={folder}", f"run.name={name}", f"train.steps={steps}", *words]
    assert main(line) == 0
    return [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    file = tmp_path / "agent.py"
    file.write_text(SDK)
    return file


@pytest.mark.slow
def test_a_loop_on_the_sdk_learns_what_our_own_does(agent: Path, tmp_path: Path) -> None:
    """Not nearly: the same tokens, the same rewards, the same updates."""
    steps = 3
    own = train(tmp_path, "own", "rollout.agent=single_turn", steps=steps)
    through = train(tmp_path, "through", f"rollout.agent={agent}:run", steps=steps)
    for one, other in zip(own, through, strict=True):
        for key in ("reward/mean", "policy/loss", "policy/grad_norm", "gap/abs_max", "response/tokens_mean"):
            assert one.get(key) == other.get(key), key
    assert through[-1]["policy/grad_norm"] > 0
    assert through[-1]["gap/abs_max"] == 0.0
    before, after = ([t.tokens for t in read(files(tmp_path / name)[3])] for name in ("own", "through"))
    assert before == after


def test_an_attempt_of_several_conversations_is_trained_and_kept(agent: Path, tmp_path: Path) -> None:
    (*_, last) = train(tmp_path, "tree", f"rollout.agent={agent}:twice", steps=1)
    assert last["attempts/branches"] == 1
    assert last["turns/mean"] == 2
    assert last["gap/abs_max"] == 0.0
    kept = read(files(tmp_path / "tree")[1])
    assert all(len(t.sequences) == 2 for t in kept)
    assert main(["view", str(tmp_path / "tree"), "--step", "1"]) == 0


@pytest.mark.slow
def test_a_resumed_run_goes_on_as_the_unbroken_one(agent: Path, tmp_path: Path) -> None:
    words = (f"rollout.agent={agent}:twice",)
    whole = train(tmp_path, "whole", *words, steps=4)
    train(tmp_path, "broken", *words, steps=2)
    broken = train(tmp_path, "broken", *words, "run.resume=true", steps=4)
    for key in ("reward/mean", "policy/loss", "response/tokens_mean"):
        assert [row.get(key) for row in whole] == [row.get(key) for row in broken]


@pytest.mark.slow
def test_a_command_is_trained(agent: Path, tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text("import json, sys\nfrom agent import run\nrun(json.load(sys.stdin))\n")
    (*_, last) = train(tmp_path, "command", f"rollout.agent.command={sys.executable} {script}", steps=2)
    assert last["attempts/failed"] == 0
    assert last["gap/abs_max"] == 0.0


# It calls until nobody answers, notes what it was told, and does not end by itself.
LONELY = """
import json, os, sys, time, urllib.request

def run(task):
    note = os.path.join({folder!r}, str(os.getpid()))
    body = json.dumps({{"messages": task["prompt"], "model": "any", "max_tokens": 1}}).encode()
    key = os.environ["OPENAI_API_KEY"]
    headers = {{"authorization": "Bearer " + key, "content-type": "application/json"}}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    open(note, "w").write(os.getcwd())
    try:
        while True:
            urllib.request.urlopen(request, timeout=60).read()
            time.sleep(0.2)
    except OSError as error:
        open(note, "a").write("\\n" + repr(error))
    time.sleep(600)

if __name__ == "__main__":
    run(json.load(sys.stdin))
"""


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["rollout.agent={file}:run", "rollout.agent.command=python {file}"])
def test_a_run_that_is_killed_leaves_no_agent_no_folder_and_no_reward(tmp_path: Path, agent: str) -> None:
    """The gateway is killed with it: who is just calling gets an error at once, and does not wait."""
    notes = tmp_path / "notes"
    notes.mkdir()
    (tmp_path / "agent.py").write_text(LONELY.format(folder=str(notes)))
    started = agent.format(file=tmp_path / "agent.py")
    line = ["train", *SMALL, started, f"run.dir={tmp_path}", "run.name=lost"]
    words = [sys.executable, "-m", "toolwright", *line, "rollout.max_turns=1000000"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        try:
            wait_until(lambda: len(list(notes.iterdir())) == 16, "all attempts are under way", 120)
        finally:
            driver.kill()

    wait_until(lambda: not any(alive(int(note.name)) for note in notes.iterdir()), "no agent is left", 60)
    told = [note.read_text().splitlines() for note in notes.iterdir()]
    errors = {error.partition("(")[0] for _, *heard in told for error in heard}  # some were ended before that
    assert errors <= {"RemoteDisconnected", "ConnectionResetError", "URLError"}
    wait_until(lambda: not any(Path(folder).exists() for folder, *_ in told), "no folder is left", 60)
    assert not (tmp_path / "lost/metrics.jsonl").exists()
    assert not files(tmp_path / "lost")
