"""Generated parts of the pages are those of the code, and the tables miss nothing."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import DOCS, ROOT
from toolwright import Trainer

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
    assert len(references.pages()) >= 2 * (
        len(references.PARTS) - 2
    )  # in both languages; the configuration has three
    for page in references.pages():
        assert page.read_text(encoding="utf-8") == references.written(page), f"{page.name}: run `make docs`"


def test_a_text_that_changed_is_shown_with_its_former_chinese(references: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "page.yaml"
    file.write_text('"tasks in a step": "每步的任务数"\n"a word": "词"\n', encoding="utf-8")
    chinese = references.Chinese(file)
    assert chinese("a word") == "词"
    assert chinese("tasks a step") == "tasks a step"
    assert chinese.problems() == [
        "docs/chinese/page.yaml:",
        '  add "tasks a step" with its Chinese',
        '  in place of "tasks in a step": "每步的任务数"',
    ]


def test_chinese_that_nothing_asks_for_is_an_error(references: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "page.yaml"
    file.write_text('"a word": "词"\n', encoding="utf-8")
    assert references.Chinese(file).problems()[1] == '  remove "a word": the code no longer says it'


@pytest.mark.parametrize("file", sorted(DOCS.glob("chinese/*.yaml")), ids=lambda file: file.stem)
def test_chinese_texts_keep_the_code_of_the_english(references: ModuleType, file: Path) -> None:
    code = references.CODE.findall
    texts = references.Chinese(file).known
    changed = [text for text, chinese in texts.items() if sorted(code(text)) != sorted(code(chinese))]
    assert not changed


@pytest.mark.parametrize("name", RUNS)
def test_every_metric_of_a_run_is_in_the_reference(references: ModuleType, name: str, tmp_path: Path) -> None:
    trainer = Trainer(*SMALL, *RUNS[name], f"run.dir={tmp_path}", f"run.name={name}")
    trainer.run()
    lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
    keys = {key for line in lines for key in json.loads(line)}
    assert len(keys) > 20
    unknown = sorted(key for key in keys if references.described(key) is None)
    assert not unknown, f"describe {unknown} in docs/metrics_reference.yaml"


def test_a_metric_of_its_own_goes_before_one_that_stands_for_many(references: ModuleType) -> None:
    assert references.described("time/total_s") == "time/total_s"
    assert references.described("time/update_s") == "time/STAGE_s"


def test_every_preset_says_when_to_use_it() -> None:
    page = (DOCS / "algorithm-presets.md").read_text(encoding="utf-8")
    for preset in Path(DOCS.parent / "toolwright/config/presets/algorithm").glob("*.yaml"):
        assert f"\n| `{preset.stem}` |" in page, f"say in docs/algorithm-presets.md when to use {preset.stem}"


@pytest.mark.parametrize("page", ["install.md", "install.zh.md"])
def test_the_table_of_extras_misses_none(page: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = re.findall(r"^\| (`[^|]+) \|", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for cell in listed for name in re.findall("`([^`]+)`", cell)} == {
        *project["optional-dependencies"]
    }
