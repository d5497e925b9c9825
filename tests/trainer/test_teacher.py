"""On-policy distillation: a teacher grades the tokens that the policy samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from toolwright.cli import main
from toolwright.failures import UserError
from toolwright.models import huggingface
from toolwright.models.tokenizer import Tokenizer
from toolwright.trainer import memory
from toolwright.trainer.loop import TrainingLoop

from .conftest import Build
from .runs import HERE, MODEL, configured, metrics, trained


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was shown the right answers."""
    runs = tmp_path_factory.mktemp("teacher")
    every = [letter + digit for letter in "abcd" for digit in "0123456789"]
    shown = [
        {"messages": [{"role": "user", "content": p}, {"role": "assistant", "content": p[0] * 2}]}
        for p in every
    ]
    file = runs / "shown.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in shown))
    words = [*(f"model.{key}={value}" for key, value in MODEL.items()), "run.threads=1"]
    words += [f"task.name={HERE}/letters.py:tasks", f"demonstrations={file}", "task.held_out_size=8"]
    words += ["steps=80", "batch=32", "optimizer.lr=1e-2", "rollout.max_tokens=4"]
    assert main(["sft", *words, f"run.dir={runs}", "run.name=teacher"]) == 0
    assert metrics(runs / "teacher")[-1]["held_out/accuracy"] == 1.0
    return runs / "teacher" / "model"


@pytest.fixture(scope="module")
def student(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights with the teacher's tokenizer."""
    folder, tokenizer = tmp_path_factory.mktemp("student"), Tokenizer.load(teacher)
    huggingface.save(tiny.Decoder(tiny.shape(vocab=tokenizer.size, context=32)).initialise(5), folder)
    tokenizer.save(folder)
    return folder


def words(student: Path, teacher: Path, *own: str) -> list[str]:
    return ["algorithm=distill", f"model.path={student}", f"algorithm.params.distill.teacher={teacher}", *own]


def test_the_student_reaches_its_teacher_without_any_reward(
    student: Path, teacher: Path, tmp_path: Path
) -> None:
    own = words(student, teacher, "train.steps=60", "rollout.prompts=16", "rollout.max_tokens=4")
    run = trained(tmp_path, *own, "rollout.samples=8")
    rows = metrics(run)
    assert rows[0]["held_out/reward"] < 0.4
    assert rows[-1]["held_out/reward"] > 0.9
    assert rows[-1]["teacher/kl"] < 0.2 * rows[1]["teacher/kl"]
    assert max(row["gap/abs_max"] for row in rows[1:]) <= 1e-5


def test_advantages_are_the_teacher_s_log_probabilities_less_the_policy_s(
    student: Path, teacher: Path, build: Build
) -> None:
    """Computed by plain passes over each sequence; the task's reward is left out of it, and put in."""
    for weight in (0.0, 0.5):
        loop = build(*words(student, teacher, f"algorithm.params.distill.reward_weight={weight}"))
        attempts = loop.sample(1).trajectories
        batch, found = loop.learner.credit.assign(attempts, exact=True, baselines={}, kl_coef=0.0)
        models = [huggingface.load(folder) for folder in (student, teacher)]
        start = 0
        for attempt in attempts:
            ours, theirs = (said(model, attempt) for model in models)
            group = [t.reward for t in attempts if t.group == attempt.group]
            better = (attempt.reward or 0.0) - sum(one or 0.0 for one in group) / len(group)
            expected = theirs - ours + weight * better
            mine = batch.columns["advantages"][start : start + len(expected)]
            torch.testing.assert_close(mine, expected, atol=2e-5, rtol=1e-5)
            start += len(expected)
        away = batch.columns["old_log_prob"] - batch.columns["teacher_log_prob"]
        assert found["teacher/kl"] == pytest.approx(float(away.mean()), abs=1e-6)


def said(model: Any, attempt: Any) -> Tensor:
    log_all = tiny.logits(model, attempt.tokens).log_softmax(-1)
    places = [place for place, ours in enumerate(attempt.mask) if ours]
    return torch.stack([log_all[place - 1, attempt.tokens[place]] for place in places])


def test_a_resumed_run_is_the_unbroken_one_to_the_last_bit(
    student: Path, teacher: Path, tmp_path: Path
) -> None:
    own = words(student, teacher, "update.minibatches=2")
    whole = trained(tmp_path, *own, "run.name=whole", "train.steps=4")
    trained(tmp_path, *own, "run.name=broken", "train.steps=2")
    resumed = trained(tmp_path, *own, "run.name=broken", "train.steps=4", "run.resume=true")
    weights = "model/model.safetensors"
    assert (resumed / weights).read_bytes() == (whole / weights).read_bytes()
    assert metrics(resumed)[-1]["teacher/kl"] == metrics(whole)[-1]["teacher/kl"]


def test_an_adapter_can_be_the_student(teacher: Path, tmp_path: Path) -> None:
    base, tokenizer = tmp_path / "base", Tokenizer.load(teacher)
    huggingface.save(tiny.decoder(vocab=tokenizer.size, context=32), base)
    tokenizer.save(base)
    own = words(base, teacher, "model.lora.rank=8", "update.policy.lr=2e-2", "train.steps=20")
    rows = metrics(trained(tmp_path, *own, "rollout.samples=8", "rollout.prompts=16"))
    assert rows[-1]["teacher/kl"] < 0.7 * rows[1]["teacher/kl"]


def refusal(*own: str) -> str:
    with pytest.raises(UserError) as caught:
        TrainingLoop(configured(*own)).close()
    return str(caught.value)


def test_a_teacher_that_cannot_teach_is_refused(student: Path, teacher: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    tokenizer = Tokenizer.characters("abcdefgh")
    huggingface.save(tiny.decoder(vocab=tokenizer.size, context=32), other)
    tokenizer.save(other)
    assert "has another tokenizer than the policy" in refusal(*words(student, other))
    assert "'0'" in refusal(*words(student, other))
    assert "needs a teacher: set algorithm.params.distill.teacher" in refusal(
        "algorithm=distill", f"model.path={student}"
    )
    assert "is not a folder" in refusal(*words(student, tmp_path / "nowhere"))
    assert "teacher=" in refusal(*words(student, tmp_path / "nowhere"))
    assert "has no effect" in refusal("algorithm=grpo", f"algorithm.params.grpo.teacher={teacher}")
    short = tmp_path / "short"
    same = Tokenizer.load(teacher)
    huggingface.save(tiny.decoder(vocab=same.size, context=16), short)
    same.save(short)
    assert "reads 16 tokens" in refusal(*words(student, short))


def test_the_memory_plan_counts_the_teacher(student: Path, teacher: Path) -> None:
    config = configured(*words(student, teacher))
    teacher_bytes = 4 * sum(p.numel() for p in huggingface.load(teacher).parameters())
    assert memory.plan(config).parts["teacher"] == teacher_bytes
    assert "teacher" not in memory.plan(configured()).parts
