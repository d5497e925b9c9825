"""The other commands from Python: configuration, warm start, sandbox and the search for workflows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import toolwright as tw
from toolwright.config.schema import Config, SupervisedConfig

from .runs import SMALL


def test_a_configuration_is_typed() -> None:
    config = tw.config("task=sums", "rollout.samples=3")
    assert isinstance(config, Config)
    assert (config.task.name, config.rollout.samples) == ("sums", 3)
    assert isinstance(tw.config("sft", "model=small"), SupervisedConfig)
    with pytest.raises(tw.UserError, match=r"did you mean rollout\.samples\?"):
        tw.config("rollout.sampels=3")


def test_a_configuration_can_begin_with_a_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults:\n  - train\n  - _self_\ntrain:\n  steps: 7\n")
    assert tw.config("--config-name", str(tmp_path / "mine.yaml")).train.steps == 7


def test_a_warm_start_gives_a_model_to_train(tmp_path: Path) -> None:
    small = [word for word in SMALL if word.startswith(("task", "model"))]
    model = tw.sft(*small, "steps=2", "batch=4", f"run.dir={tmp_path}")
    assert (model / "config.json").is_file()
    assert tw.evaluate("task=reverse", "task.held_out_size=4", model=model)["held_out/attempts"] == 4


def test_a_sandbox_needs_no_server_and_works_in_a_notebook() -> None:
    async def cell() -> str:
        with tw.Sandbox() as sandbox:
            return sandbox.run("print(6 * 7)").stdout

    assert asyncio.run(cell()).strip() == "42"


def test_a_search_for_workflows_is_a_function(tmp_path: Path) -> None:
    import toolwright.workflow.search_loop  # the module does not hide the function

    words = ("search.tasks=15", "search.held_out=5", "search.guided.first=5", "proposer.name=uniform")
    folder = tw.workflow.search("--config-name=quick", *words, "search.runs=60", f"run.dir={tmp_path}")
    assert (folder / "report.html").is_file()
    assert toolwright.workflow.search_loop.WorkflowSearch is not None
