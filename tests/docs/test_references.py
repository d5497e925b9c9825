"""Generated parts of the pages are those of the code, and the tables miss nothing."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import DOCS
from toolwright import Trainer
from toolwright.observe.metric_names import METRICS, metric

RUNS = {
    "tools": ("task=sums",),
    "critic": ("task=gridworld", "algorithm=ppo"),
    "parts": ("task=reverse", "algorithm=gspo", "reward.parts={task: 1.0, format: 0.1}"),
    "correction": ("task=reverse", "algorithm=dapo", "algorithm.correction.mode=truncate"),
}
SMALL = (
    *(
        "train.steps=1",
        "rollout.prompts=2",
        "rollout.samples=2",
        "task.held_out_size=2",
        "update.minibatches=1",
    ),
    *(
        "model.layers=1",
        "model.width=32",
        "model.heads=2",
        "model.kv_heads=2",
        "model.ffn=32",
        "run.threads=1",
    ),
)


@pytest.fixture(scope="module")
def references() -> ModuleType:
    spec = importlib.util.spec_from_file_location("references", DOCS / "references.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_up_to_date(references: ModuleType) -> None:
    assert len(references.pages()) >= 2 * (len(references.PARTS) - 1)  # in both languages
    for page in references.pages():
        assert page.read_text(encoding="utf-8") == references.written(page), f"{page.name}: run `make docs`"


@pytest.mark.parametrize("name", RUNS)
def test_every_metric_of_a_run_is_in_the_reference(name: str, tmp_path: Path) -> None:
    trainer = Trainer(*SMALL, *RUNS[name], f"run.dir={tmp_path}", f"run.name={name}")
    trainer.run()
    lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
    keys = {key for line in lines for key in json.loads(line)}
    assert len(keys) > 20
    unknown = sorted(key for key in keys if metric(key) is None)
    assert not unknown, f"describe {unknown} in toolwright/observe/metric_names.py"


def test_a_metric_of_its_own_goes_before_one_that_stands_for_many() -> None:
    found = metric("time/total_s")
    assert found is not None
    assert found.name == "time/total_s"
    assert len({entry.name for entry in METRICS}) == len(METRICS)


def test_every_preset_says_when_to_use_it() -> None:
    page = (DOCS / "algorithm-presets.md").read_text(encoding="utf-8")
    for preset in Path(DOCS.parent / "toolwright/config/presets/algorithm").glob("*.yaml"):
        assert f"\n| `{preset.stem}` |" in page, f"say in docs/algorithm-presets.md when to use {preset.stem}"
