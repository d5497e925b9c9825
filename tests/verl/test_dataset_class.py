"""A data set class written for verl makes the tasks, where verl is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verl.conftest import tasks
from toolwright.config.schema import TaskConfig
from toolwright.failures import UserError
from toolwright.tasks import load
from toolwright.verl.command import main

OWN = '''
from verl.tools.base_tool import OpenAIFunctionToolSchema
from verl.utils.dataset import RLHFDataset
from verl.utils.rollout_trace import rollout_trace_op

class Doubled(RLHFDataset):
    """Each row twice, the second time as a question."""

    def _read_files_and_tokenize(self):
        super()._read_files_and_tokenize()
        twice = [(row, again) for row in self.dataframe for again in (0, 1)]
        self.dataframe = [dict(row, extra_info={"again": again}) for row, again in twice]

    def __getitem__(self, index):
        row = super().__getitem__(index)
        if row["extra_info"]["again"]:
            row["raw_prompt"] = [{"role": "user", "content": row["raw_prompt"][0]["content"] + "?"}]
        return row

class UsesVerl(RLHFDataset):
    def _download(self):
        OpenAIFunctionToolSchema(name="x")
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own_data.py"
    path.write_text(OWN)
    return path


def config(file: Path, name: str, train: Path) -> TaskConfig:
    return TaskConfig(
        name="dataset_class",
        train=str(train),
        held_out=str(train),
        held_out_size=4,
        params={"path": str(file), "name": name},
    )


def test_the_class_makes_the_tasks(file: Path, train: Path) -> None:
    found = load(config(file, "Doubled", train), seed=0)
    assert len(found.train) == 32
    assert len(found.held_out) == 4
    assert [task.prompt[0]["content"] for task in found.train[:2]] == ["0+0=", "0+0=?"]
    assert found.train[0].ground_truth == "0"
    assert found.train[0].data_source == "arithmetic"


def test_what_is_verls_own_is_reported(file: Path, train: Path) -> None:
    with pytest.raises(UserError, match="OpenAIFunctionToolSchema belongs to verl"):
        load(config(file, "UsesVerl", train), seed=0)


def test_a_line_names_it(file: Path, train: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"data.train_files={train}", "actor_rollout_ref.model.path=m"]
    words += [f"data.custom_cls.path={file}", "data.custom_cls.name=Doubled", "--show", "--fit"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "task.params.name=Doubled" in shown
    assert "task.name=dataset_class" in shown


def test_a_folder_of_files_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "kept" / "data"
    tasks(folder / "train-00000-of-00002.parquet", count=6)
    tasks(folder / "train-00001-of-00002.parquet", count=5)
    tasks(folder / "test-00000-of-00001.parquet", count=3)
    own = TaskConfig(name="file", train=str(folder), held_out=str(folder), held_out_size=8)
    found = load(own, seed=0)
    assert len(found.train) == 11
    assert len(found.held_out) == 3
    words = [f"data.train_files={folder}", "actor_rollout_ref.model.path=m", "data.train_batch_size=11"]
    assert main([*words, "trainer.n_gpus_per_node=1", "--show", "--fit"]) == 0
    assert "rollout.prompts=11" in capsys.readouterr().out
