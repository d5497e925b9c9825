"""Puzzles of reasoning-gym: made by name, level and setting, judged by the package."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from toolwright.cli import main
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.observe.metrics import Metrics
from toolwright.rewards import Scorer
from toolwright.tasks import TaskSet, load
from toolwright.trajectory import Segment, Task, Trajectory

pytest.importorskip("reasoning_gym", reason="needs the extra 'reasoning-gym'")


def tasks(**params: Any) -> TaskSet:
    return load(
        schema.TaskConfig(name="reasoning_gym", params=params, train_size=12, held_out_size=6), seed=0
    )


def test_puzzles_are_of_the_data_sets_that_are_named_and_none_is_asked_twice() -> None:
    found = tasks(dataset=["chain_sum", "spell_backward"], levels=2)
    every = [*found.train, *found.held_out]
    assert {task.data_source for task in every} == {"reasoning_gym/chain_sum", "reasoning_gym/spell_backward"}
    assert {task.extra_info["difficulty"] for task in every} == {
        f"{kind} {level}" for kind in ("chain_sum", "spell_backward") for level in (0, 1)
    }
    assert len({str(task.prompt) for task in every}) == len(every)
    assert tasks(dataset="chain_sum,spell_backward", levels=2).train == found.train


def test_settings_are_the_data_sets_own() -> None:
    found = tasks(dataset="chain_sum", config={"min_terms": 5, "max_terms": 5})
    assert all(str(task.prompt).count("+") + str(task.prompt).count(" - ") == 4 for task in found.train)


def test_the_demonstrated_answer_is_right_by_the_packages_own_scorer() -> None:
    found = tasks(levels=1)
    assert found.demonstrate is not None
    attempts = []
    for task in found.train:
        right = found.demonstrate(task, random.Random(0))[-1]["content"]
        attempts += [said(task, right), said(task, "<answer>no idea</answer>")]
    asyncio.run(Scorer(schema.Reward(), default=found.scorer).score(attempts))
    assert [one.reward for one in attempts[::2]] == [1.0] * 12
    assert all((one.reward or 0.0) < 0.5 for one in attempts[1::2])


def test_the_word_list_is_read_once_for_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 18 ms to read, and a run scores thousands of attempts."""
    from reasoning_gym.algorithmic import spell_backward

    found, reads = tasks(dataset="spell_backward", levels=1), []
    real = spell_backward.read_data_file

    def read_data_file(name: str) -> Any:
        reads.append(name)
        return real(name)

    monkeypatch.setattr(spell_backward, "read_data_file", read_data_file)
    attempts = [said(task, "<answer>abc</answer>") for task in found.train]
    asyncio.run(Scorer(schema.Reward(), default=found.scorer).score(attempts))
    assert len(reads) <= 1


def said(task: Task, text: str) -> Trajectory:
    made = Trajectory(task, task.id)
    made.append(Segment("policy", [1], [-1.0], text))
    return made


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"dataset": "chain_sun"}, "reasoning-gym has no data set 'chain_sun'; did you mean 'chain_sum'"),
        ({"dataset": "chain_sum", "config": {"colour": 1}}, "cannot make chain_sum with .*colour"),
        ({"dataset": "chain_sum", "config": {"min_terms": -1}}, "cannot make chain_sum with .*min_terms"),
        ({"levels": 0}, "levels"),
    ],
)
def test_what_cannot_be_made_is_reported(params: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        tasks(**params)


def test_prepared_files_are_read_where_they_are_named(tmp_path: Path) -> None:
    made = tasks(dataset="gcd", levels=1)
    file = tmp_path / "puzzles.jsonl"
    rows = [
        {"prompt": t.prompt, "data_source": t.data_source, "reward_model": {"ground_truth": t.ground_truth}}
        for t in made.train
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = schema.TaskConfig(name="reasoning_gym", train=str(file), held_out_size=2)
    assert len(load(config, seed=0).train) == 10


@pytest.mark.slow
def test_a_warm_start_learns_on_and_held_out_words_show_it(tmp_path: Path) -> None:
    """The commands of docs/tasks.md: words of four letters backward, by a tiny model that was shown some. It
    is judged by words that it never saw: by its likeliest answers, and sampled as it was trained."""
    common = ["task=reasoning_gym", "task.params.dataset=spell_backward", "task.order=shuffled"]
    common += ["task.params.config.min_word_len=4", "task.params.config.max_word_len=4"]
    common += ["task.held_out_size=200", "model.context=160"]
    common += ["run.threads=1", "run.seed=22", f"run.dir={tmp_path}"]
    size = ["model.layers=2", "model.width=64", "model.heads=4", "model.kv_heads=4", "model.ffn=128"]
    warm = ["task.train_size=500", "steps=600", "batch=16", "optimizer.lr=3e-3", "optimizer.warmup_steps=10"]
    assert main(["sft", *common, *size, *warm, "optimizer.decay=cosine", "run.name=warm"]) == 0
    own = ["task.train_size=4000", "rollout.max_tokens=28", "rollout.prompts=64", "rollout.samples=8"]
    own += ["algorithm.kl.where=none", "update.policy.lr=5e-4", "train.steps=80"]
    own += ["eval.every=0", "eval.temperature=1", "eval.samples=4", "run.name=better"]
    assert main(["train", *common, *own, f"model.path={tmp_path}/warm/model"]) == 0
    before, after = accuracies(tmp_path / "better")
    assert after > before + 0.1
    likeliest = []
    for name in ("warm", "better"):
        judged = [
            *common,
            "rollout.max_tokens=28",
            f"model.path={tmp_path}/{name}/model",
            f"run.name={name}_judged",
        ]
        assert main(["eval", *judged]) == 0
        likeliest += accuracies(tmp_path / f"{name}_judged")
    assert likeliest[1] > likeliest[0]


def accuracies(run: Path) -> list[float]:
    rows = Metrics.read(run / "metrics.jsonl")
    return [row["held_out/accuracy"] for row in rows if "held_out/accuracy" in row]
