"""Runs on pictures: from a task file to a policy that names what it sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pictures import asks, picture, qwen_folder, smol_folder, url

from tests.settings import configure
from toolwright.config import schema
from toolwright.config.compose import Source, resolve
from toolwright.failures import UserError
from toolwright.observe.metrics import Metrics
from toolwright.observe.rollouts import files, read
from toolwright.trainer import supervised
from toolwright.trainer.loop import train
from toolwright.ui.query import Query
from toolwright.ui.run_library import RunLibrary
from toolwright.ui.view import RUN_VIEWS

HERE = Path(__file__).resolve().parent
COLOURS = f"task.name={HERE / 'colours.py'}:tasks"


def run(folder: Path, *words: str) -> Path:
    small = [
        "rollout.max_tokens=4",
        "rollout.prompts=2",
        "rollout.samples=3",
        "train.steps=2",
        "run.threads=1",
    ]
    every = {word.partition("=")[0]: word for word in [*small, f"run.dir={folder}", *words]}
    return train(configure(list(every.values())), command=["toolwright", "train", *words])


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    rows = []
    for number, colour in enumerate(["red", "green", "blue", "white"] * 3):
        (tmp_path / f"{number}.png").write_bytes(picture(colour, (40 + number, 50)))
        prompt = asks("colour?", f"{number}.png")
        truth = {"ground_truth": colour}
        rows.append({"prompt": prompt, "data_source": "exact", "reward_model": truth})
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("make", [qwen_folder, smol_folder], ids=["qwen", "smol"])
def test_a_run_on_pictures_agrees_with_its_engine(make: object, tmp_path: Path, task_file: Path) -> None:
    assert callable(make)
    folder = run(
        tmp_path / "runs",
        "task=file",
        f"task.train={task_file}",
        "task.held_out_size=4",
        f"model.path={make(tmp_path / 'model')}",
        "algorithm.kl.where=loss",
    )
    steps = Metrics.read(folder / "metrics.jsonl")
    assert [step["gap/abs_max"] <= 1e-5 for step in steps if "gap/abs_max" in step] == [True, True]
    attempts = read(files(folder)[2])
    assert all(len(attempt.images) == 1 for attempt in attempts)
    assert "png image" in (folder / "report.html").read_text()
    assert "base64" not in (folder / "report.html").read_text()
    library = RunLibrary(folder.parent)
    shown: Any = RUN_VIEWS.get("attempts/item").target(library.get(folder.name), Query.parse(b"", ["2", "0"]))
    part = shown.data["task"]["prompt"][0]["content"][0]
    assert part == {"type": "image", "image": attempts[0].images[0][2]}


def test_a_part_that_takes_no_images_is_named_before_anything_starts(tmp_path: Path, task_file: Path) -> None:
    words = ["task=file", f"task.train={task_file}", "task.held_out_size=4"]
    with pytest.raises(UserError, match=r"has images: set model\.path to the folder of a vision model"):
        run(tmp_path / "runs", *words)
    with pytest.raises(
        UserError, match=r"has images: engine\.name=http does not take them; use engine.name=native"
    ):
        run(tmp_path / "runs", *words, f"model.path={tmp_path}", "engine.name=http", "engine.url=http://x:1")


@pytest.mark.slow
def test_a_policy_learns_to_name_the_colour_that_it_sees(tmp_path: Path) -> None:
    """From a warm start that guesses: a quarter of the answers are right."""
    folder = qwen_folder(tmp_path / "model", width=64, scale=2)
    words = [COLOURS, "task.held_out_size=16", f"model.path={folder}", "steps=60", "batch=16"]
    config = resolve(Source("sft"), [*words, "optimizer.lr=3e-3", f"run.dir={tmp_path / 'sft'}"]).config
    assert isinstance(config, schema.SupervisedConfig)
    warm = supervised.train(config, command=["toolwright", "sft"])
    done = run(
        tmp_path / "runs",
        COLOURS,
        "task.held_out_size=16",
        f"model.path={warm / 'model'}",
        "rollout.max_tokens=2",
        "rollout.prompts=16",
        "rollout.samples=8",
        "train.steps=45",
        "update.policy.lr=1e-3",
        "algorithm.entropy_coef=0.02",
        "eval.every=15",
    )
    judged = [
        step["held_out/accuracy"]
        for step in Metrics.read(done / "metrics.jsonl")
        if "held_out/accuracy" in step
    ]
    assert judged[0] <= 0.6
    assert judged[-1] >= 0.9, judged


def test_a_picture_is_part_of_what_a_task_is(tmp_path: Path) -> None:
    """Rows that differ in their picture alone are not taken for one."""
    rows = [{"prompt": asks("?", url(colour))} for colour in ("red", "green", "blue")]
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    from toolwright.tasks import load

    made = load(schema.TaskConfig(name="file", train=str(path), held_out_size=1), seed=0)
    assert (len(made.train), len(made.held_out)) == (2, 1)
