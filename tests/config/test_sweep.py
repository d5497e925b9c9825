"""`--multirun`: a run of its own for each combination, all of them checked before the first starts."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from toolwright.cli.eval import Start
from toolwright.config.compose import Source
from toolwright.config.launch import _begin, _Job, launch
from toolwright.failures import UserError


class Recorder:
    """What the trainer was asked to do."""

    def __init__(self) -> None:
        self.configs: list[Any] = []
        self.commands: list[list[str]] = []

    def __call__(self, config: Any, command: list[str]) -> None:
        self.configs.append(config)
        self.commands.append(command)

    @property
    def names(self) -> list[str]:
        return [config.run.name for config in self.configs]


@pytest.fixture
def started() -> Recorder:
    return Recorder()


def sweep(started: Recorder, *words: str) -> None:
    assert launch("train", [*words, "--multirun"], about="", start=started) == 0


def test_every_combination_is_a_run_with_a_name_of_its_own(started: Recorder) -> None:
    sweep(
        started,
        "rollout.samples=2,4",
        "model=tiny,small",
        "task.params.terms=3",
        "hydra.sweeper.max_batch_size=3",
    )
    combinations = [(config.rollout.samples, config.model.layers) for config in started.configs]
    assert combinations == [(2, 3), (2, 5), (4, 3), (4, 5)]
    assert len(set(started.names)) == 4
    assert all(name.startswith("grpo-arithmetic-") for name in started.names)
    assert started.configs[0].task.params["terms"] == 3


def test_a_given_name_is_numbered_and_only_a_record_is_left(started: Recorder, folder: Path) -> None:
    sweep(started, "run.seed=1,2", "run.name=mine")
    assert started.names == ["mine-0", "mine-1"]
    assert started.commands[1] == ["toolwright", "train", "run.seed=2", "run.name=mine-1"]
    assert [path.name for path in folder.iterdir()] == ["runs"]
    assert [path.name for path in (folder / "runs").iterdir()] == [".sweeps"]


def test_names_that_are_swept_alone_stay_as_they_are(started: Recorder) -> None:
    sweep(started, "run.name=a,b")
    assert started.names == ["a", "b"]


def test_a_mistake_in_the_last_job_stops_the_first(started: Recorder) -> None:
    with pytest.raises(UserError, match="expected a positive integer, found 0"):
        sweep(started, "rollout.samples=4,0")
    with pytest.raises(UserError, match="unknown preset 'gprp'"):
        sweep(started, "algorithm=grpo,gprp")
    assert started.configs == []


def test_a_mistake_in_a_later_batch_stops_the_first(started: Recorder) -> None:
    with pytest.raises(UserError, match=r"in the job run\.name=a rollout\.samples=0"):
        sweep(started, "run.name=a", "rollout.samples=4,0", "hydra.sweeper.max_batch_size=1")
    assert started.configs == []


def test_the_sweepers_own_parameters_are_checked_too(started: Recorder, folder: Path) -> None:
    file = folder / "mine.yaml"
    params = "hydra: {sweeper: {params: {rollout.samples: '4,0'}}}"
    file.write_text(f"defaults: [train, _self_]\n{params}\n", encoding="utf-8")
    with pytest.raises(UserError, match="expected a positive integer, found 0"):
        sweep(started, "--config-name", "mine.yaml")
    assert started.configs == []


def test_jobs_find_presets_in_hydras_search_path(started: Recorder, folder: Path) -> None:
    (folder / "more/model").mkdir(parents=True)
    (folder / "more/model/wide.yaml").write_text("width: 256\n", encoding="utf-8")
    sweep(started, f"hydra.searchpath=[file://{folder}/more]", "model=wide", "run.seed=1,2")
    assert [config.model.width for config in started.configs] == [256, 256]


def test_a_bug_in_a_job_is_no_mistake_of_the_users() -> None:
    def broken(config: Any, command: list[str]) -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        launch("train", ["run.name=a,b", "-m"], about="", start=broken)


def test_a_job_can_be_sent_to_another_process() -> None:
    job = _Job(Source("eval"), partial(_begin, Start(as_json=True)), "now", numbered=True)
    sent = pickle.loads(pickle.dumps(job))
    assert (sent.source, sent.stamp, sent.numbered) == (job.source, job.stamp, job.numbered)
    assert (sent.work.func, sent.work.args) == (_begin, (Start(as_json=True),))


def test_one_run_leaves_nothing_and_keeps_the_working_directory(started: Recorder, folder: Path) -> None:
    launch("train", ["run.seed=1"], about="", start=started)
    assert started.commands == [["toolwright", "train", "run.seed=1"]]
    assert Path.cwd() == folder
    assert list(folder.iterdir()) == []
