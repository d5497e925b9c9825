"""A data set, its executor and a chat model that proposes, asked of a real server by both official SDKs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from tests.serve.conftest import Served, serving
from tests.workflow.programs import operators_of
from toolwright.cli import main
from toolwright.models import huggingface
from toolwright.models.attention import PackedAttention
from toolwright.models.tokenizer import Tokenizer
from toolwright.trajectory import Task
from toolwright.workflow import datasets
from toolwright.workflow.executors import MATH
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.program import single_call
from toolwright.workflow.proposers import ASK, ChatProposer, Editor, WorkflowState
from toolwright.workflow.record import records
from toolwright.workflow.simulate import PROMPTS

from .word_model import word_model

pytestmark = pytest.mark.xdist_group("serve")
EDIT = "add ScEnsemble after solve x 3"
# What it says to a problem; of every three answers one is wrong.
SUMS = {f"{a}+{b}?": a + b + (1 if (a + b) % 3 == 0 else 0) for a in range(1, 6) for b in range(1, 5)}


def lessons(tasks: Sequence[Task]) -> list[tuple[str, str]]:
    """Problems with their answers, and what the proposer asks of the start, with an edit."""
    asking = ChatProposer(None, Editor(MATH, PROMPTS), None, search="s", tasks=tasks)  # type: ignore[arg-type]
    wrong = sorted(t.id for t in tasks if str(SUMS[t.prompt[0]["content"]]) != t.ground_truth)
    start = WorkflowState("s", "math", single_call(), 0.5, 0.5, (), 0.6, tuple((one, "") for one in wrong))
    return [(asking.prompt(start), f"<edit>{EDIT}</edit>"), *((one, str(SUMS[one])) for one in SUMS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, sums: Path) -> Path:
    """A model that has learned these by heart, word by word."""
    place = tmp_path_factory.mktemp("models") / "pupil"
    said = lessons(datasets.load(str(sums), validation_size=4).validation)
    word_model(place, [ASK, "0123456789", *(text for pair in said for text in pair)], width=64, context=2048)
    own, decoder = Tokenizer.load(place), huggingface.load(place, context=2048, fast=None)
    rows, learned = [], []
    for question, answer in said:
        opened = own.opening([{"role": "user", "content": question}]).tokens
        written = [*own.encode_inside(answer), own.end]
        start = sum(map(len, rows)) + len(opened)
        learned += range(start, start + len(written))
        rows.append([*opened, *written])
    tokens, at = torch.tensor([token for row in rows for token in row]), torch.tensor(learned)
    attend = PackedAttention([len(row) for row in rows], torch.device("cpu"))
    optimiser = torch.optim.AdamW(decoder.parameters(), lr=1e-2)
    for _ in range(150):
        logits = decoder.head(decoder.hidden(tokens, attend.positions, attend)[at - 1])
        loss = torch.nn.functional.cross_entropy(logits, tokens[at])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if loss.item() < 0.004:
            break
    assert loss.item() < 0.01
    huggingface.save(decoder, place)
    return place


@pytest.fixture(scope="module")
def pupil(folder: Path) -> Iterator[Served]:
    with serving(folder, "--slots", "8", "--context", "2048") as running:
        yield running


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "sums.jsonl"
    rows = [
        {
            "prompt": [{"role": "user", "content": problem}],
            "data_source": "numeric",
            "reward_model": {"ground_truth": str(sum(map(int, problem.rstrip("?").split("+"))))},
        }
        for problem in SUMS
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_search_on_a_data_set_with_models_behind_a_server(
    provider: str, pupil: Served, sums: Path, tmp_path: Path
) -> None:
    url = pupil.url + ("/v1" if provider == "openai" else "")
    chat = [f"provider={provider}", f"model={pupil.name}", f"base_url={url}", "price=1"]
    # Anthropic's protocol has no seed: what is proposed is to be the same in every run all the same.
    greedy = ["proposer.chat.fields={temperature: 0}"] if provider == "anthropic" else []
    words = [
        f"data=[{sums}]",
        "executor.name=chat",
        "executor.temperature=0",
        "executor.max_tokens=16",
        *(f"executor.chat.{one}" for one in chat),
        "proposer.name=chat",
        *(f"proposer.chat.{one}" for one in chat),
        *greedy,
        "search.tasks=4",
        "search.held_out=4",
        "search.runs=10",
        "search.cost=1",
        "search.guided.first=4",
        "search.guided.repeats=1",
        "search.portfolio=none",
        "search.guided.width=2",
        f"run.dir={tmp_path}",
        f"run.name={provider}",
    ]
    assert main(["workflow", "search", *words]) == 0
    run = tmp_path / provider
    (record,) = records(run).values()
    tasks = datasets.load(str(sums), validation_size=4).validation
    right = [str(SUMS[task.prompt[0]["content"]]) == task.ground_truth for task in tasks]
    assert record.start.mean == sum(right) / 4 == 0.5
    assert record.start.cost > 0
    first = next(row for row in record.rows if row.edit == EDIT)
    assert first.parent == 0
    assert first.runs >= 2
    assert "ScEnsemble" in operators_of(first.workflow)
    assert all(row.failure for row in record.rows[1:] if not row.runs)  # what it could not understand
    asked = pupil.metric("serve_completion_tokens")
    judged = 4 * len({0, record.best})
    assert ExperiencePool(run / "pool.db").spent()[0] == judged + sum(row.runs for row in record.rows)
    assert main(["workflow", "search", f"run.dir={tmp_path}", f"run.name={provider}", "run.resume=true"]) == 0
    assert pupil.metric("serve_completion_tokens") == asked  # nothing is asked for twice
