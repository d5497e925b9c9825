"""`toolwright rm`: pairs that were compared become a model that scores."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from tests.rewards.attempts import attempt
from toolwright.cli import main
from toolwright.config import schema
from toolwright.learner.pair_learner import ComparedPair, PairLearner
from toolwright.models.score_model import ScoreModel
from toolwright.models.tokenizer import Tokenizer
from toolwright.rewards import Scorer
from toolwright.trajectory import Task, Trajectory

from . import pairs
from .runs import MODEL, metrics

WEIGHTS = "model/model.safetensors"


def words(data: Path, *own: str) -> list[str]:
    small = [f"model.{key}={value}" for key, value in MODEL.items()]
    small += [f"task.train={data}", "task.held_out_size=8", "steps=60", "batch=16", "optimizer.lr=1e-2"]
    return ["rm", *small, "run.threads=1", f"run.dir={data.parent}", *own]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pairs.written(tmp_path_factory.mktemp("rm") / "pairs.jsonl", [*pairs.rows(), *pairs.rows(1)])


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    assert main(words(data, "run.name=whole", "eval_every=20", "checkpoint.every=30")) == 0
    return data.parent / "whole"


def test_held_out_pairs_are_told_apart(run: Path) -> None:
    rows = metrics(run)
    assert [row["step"] for row in rows if "held_out/accuracy" in row] == [0, 20, 40, 60]
    assert rows[0]["held_out/accuracy"] == 0.5  # a head of zeros prefers nothing
    last = rows[-1]
    assert last["held_out/accuracy"] >= 0.9
    assert last["held_out/accuracy_low"] < last["held_out/accuracy"] <= last["held_out/accuracy_high"]
    assert last["policy/preference_accuracy"] > 0.9
    assert (run / "report.html").is_file()


def test_transformers_loads_the_folder_and_the_scorer_takes_it(run: Path) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(run / "model")
    words = Tokenizer.load(run / "model")

    def asked(answer: str) -> Trajectory:
        made = attempt(answer)
        made.task = Task("t", [{"role": "user", "content": "b3"}])
        return made

    params = {"reward_model": {"path": str(run / "model")}}
    scorer = Scorer(schema.Reward(function="reward_model", params=params), default="exact")
    attempts = [asked("bb"), asked("cc")]
    try:
        asyncio.run(scorer.score(attempts))
    finally:
        scorer.close()
    for one, answer in zip(attempts, ("bb", "cc"), strict=True):
        told = [*one.task.prompt, {"role": "assistant", "content": answer}]
        with torch.no_grad():
            own = model(input_ids=torch.tensor([words.conversation(told)])).logits.item()
        assert one.reward == pytest.approx(own, abs=1e-4)
    assert (attempts[0].reward or 0.0) > (attempts[1].reward or 0.0)


def test_a_resumed_training_ends_with_the_same_bits(run: Path, data: Path) -> None:
    broken = data.parent / "broken"
    # As if it was killed after its checkpoint: the metrics go on, the last checkpoint does not.
    assert main(words(data, "run.name=broken", "eval_every=20", "checkpoint.every=30")) == 0
    for late in (broken / "checkpoints/step_60", broken / "model"):
        late.rename(late.with_name(f"gone_{late.name}"))
    assert main(["rm", "run.name=broken", "run.resume=true", f"run.dir={data.parent}"]) == 0
    assert (broken / WEIGHTS).read_bytes() == (run / WEIGHTS).read_bytes()
    times = ("time/total_s",)
    plain = [
        [{k: v for k, v in row.items() if k not in times} for row in metrics(one)] for one in (run, broken)
    ]
    assert plain[0] == plain[1]


def test_a_training_whose_checkpoints_are_all_broken_is_not_begun_again(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torn = data.parent / "torn"
    shutil.copytree(run, torn)
    for checkpoint in (torn / "checkpoints").iterdir():
        (checkpoint / "tensors.pt").unlink()
    assert main(["rm", "run.name=torn", "run.resume=true", f"run.dir={data.parent}"]) == 2
    assert f"no checkpoint in {torn / 'checkpoints'} is whole: " in capsys.readouterr().err
    assert metrics(torn) == metrics(run)


def test_the_loss_is_that_of_bradley_and_terry_however_it_is_split() -> None:
    import tiny

    some = [
        ComparedPair([5, 6, 7], [5, 8], 0.5),
        ComparedPair([9], [10, 11, 12]),
        ComparedPair([6], [7], -1.0),
    ]
    moved = []
    for micro_tokens in (1, 1000):
        model = ScoreModel.fresh(tiny.decoder(), dtype=torch.float32)
        torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
        learner = PairLearner(
            model, schema.OptimizerConfig(lr=1e-3), total_updates=10, micro_tokens=micro_tokens
        )
        scores = [[model.scores([tokens]).double().item() for tokens in (p.chosen, p.rejected)] for p in some]
        found = learner.update(some)
        ahead = torch.tensor([c - r - p.margin for (c, r), p in zip(scores, some, strict=True)])
        assert found["loss"] == pytest.approx(-torch.log(torch.sigmoid(ahead)).mean().item(), rel=1e-4)
        moved.append(found["grad_norm"])
    assert moved[0] == pytest.approx(moved[1], rel=1e-4)


def test_a_mistake_in_the_data_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labelled = pairs.written(tmp_path / "labelled.jsonl", pairs.labelled())
    assert main(words(labelled, "run.name=x")) == 2
    assert "learns from pairs" in capsys.readouterr().err
    file = tmp_path / "margins.jsonl"
    file.write_text(json.dumps({**pairs.rows()[0], "margin": "much"}) + "\n")
    assert main(words(file, "run.name=x")) == 2
    assert "`margin` must be a number" in capsys.readouterr().err
    tools = [{"type": "function", "function": {"name": "look_up"}}]
    file = pairs.written(tmp_path / "tools.jsonl", [{**row, "tools": tools} for row in pairs.rows()])
    assert main(words(file, "run.name=x")) == 2
    assert "has `tools`, which a reward model never sees" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
