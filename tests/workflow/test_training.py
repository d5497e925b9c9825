"""Workflow and executor together: the model is trained within the workflow that a search found."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.json_server import json_server
from toolwright.cli import main
from toolwright.models import huggingface
from toolwright.models.decoder import Decoder, Shape
from toolwright.models.tokenizer import Tokenizer
from toolwright.observe.rollouts import files, read
from toolwright.sandbox import layers, local
from toolwright.workflow import training
from toolwright.workflow.graph import PROBLEM, Node, Ref
from toolwright.workflow.program import Workflow
from toolwright.workflow.record import records

LETTERS = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;?!'\"()[]{}<>/\\_-+=*#`\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with random weights, which says the right digit now and then."""
    own = Tokenizer.characters(LETTERS)
    shape = Shape(vocab=own.size, layers=1, width=32, heads=4, kv_heads=4, ffn=64, context=256, head_dim=8)
    huggingface.save(Decoder(shape).initialise(1), tmp_path / "tiny")
    own.save(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Every answer is seven, which a model learns in few steps."""
    row = {"data_source": "openai/gsm8k", "reward_model": {"ground_truth": "7"}}
    rows = [{**row, "prompt": [{"role": "user", "content": f"{n}?"}]} for n in range(100)]
    (tmp_path / "sevens.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "sevens.jsonl"


def test_programs_of_all_attempts_run_on_the_server_that_the_training_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = layers.missing()
    if missing:
        pytest.skip(f"this kernel lacks layers of isolation: {missing}")
    program = Node("program", "Programmer", {"problem": (PROBLEM,)})
    workflow = Workflow((program,), output=(Ref("program", "output"),), prompts={})
    (tmp_path / "workflow.json").write_text(json.dumps(workflow.to_json()))
    reply = {"role": "assistant", "content": "```python\ndef solve():\n    return 6 * 7\n```"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "usage": usage}
    answer["choices"] = [{"index": 0, "finish_reason": "stop", "message": reply}]
    task = {"id": "1", "prompt": [{"role": "user", "content": "6 × 7?"}], "data_source": "", "extra_info": {}}
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv(training.WORKFLOW, str(tmp_path / "workflow.json"))
    with (
        training._sandbox(workflow.to_json()) as address,
        json_server(lambda *_: answer) as model,
    ):
        assert address
        monkeypatch.setenv(training.SANDBOX, address)
        monkeypatch.setattr(local, "local_server", None)  # a second server cannot be started
        policy = {"model": "m", "base_url": f"{model}/v1"}
        assert asyncio.run(training.solve(task, policy)) == "42"


@pytest.mark.slow
def test_the_model_learns_within_the_workflow_that_was_found(model: Path, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    search = [
        f"data=[{data}]",
        "executor.name=chat",
        f"executor.chat={{provider: engine, model: '{model}', context: 256}}",
        "executor.max_tokens=3",
        "search.operators=[Custom,Vote]",
        "search.tasks=8",
        "search.held_out=20",
        "search.runs=60",
        "search.guided.first=6",
    ]
    train = ["train.steps=12", "rollout.prompts=8", "rollout.samples=8", "rollout.max_tokens=3"]
    train += ["update.policy.lr=1e-2", "run.threads=1", "eval.at_start=false", "model.context=256"]
    folder = tmp_path / "both"
    assert main(["workflow", "train", str(folder), *search, "--rounds", "1", "--train", *train]) == 0
    (before,), (after,) = (records(folder / f"search_{n}").values() for n in (0, 1))
    assert after.held_out["best"] > before.held_out["best"] + 0.3
    attempts = read(files(folder / "train_0")[12])
    assert {attempt.task.id for attempt in attempts}
    assert all(attempt.sampled_tokens for attempt in attempts)
    assert {attempt.reward for attempt in attempts} == {0.0, 1.0}
