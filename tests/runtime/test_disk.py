"""A disk that is full, under Ray: a sentence, and what was saved before is whole."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.disk import room_for
from toolwright.failures import UserError
from toolwright.learner import checkpoints
from toolwright.trainer.loop import train
from toolwright.trainer.run_folder import RunFolder

from .clusters import PATIENT, configured, words
from .test_driver import driver

pytestmark = pytest.mark.xdist_group("ray runs")


@pytest.mark.slow
def test_a_full_disk_ends_a_run_over_a_cluster_with_a_sentence(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy's own process has made the model; the driver finds no room for it."""
    save, calls = RunFolder.save_model, []

    def cramped(folder: RunFolder, export: Callable[[Path], None]) -> None:
        calls.append(folder)
        with room_for(100 if len(calls) == 2 else resource.RLIM_INFINITY):
            save(folder, export)

    monkeypatch.setattr(RunFolder, "save_model", cramped)
    config = configured(*PATIENT, f"run.dir={tmp_path}", "run.name=x", "checkpoint.every=1")
    with pytest.raises(UserError) as said:
        train(config, command=["toolwright"])
    assert str(said.value).startswith(f"no room to write in {tmp_path}/x: [Errno 27] File too large; ")
    assert (
        f"the last whole checkpoint is {tmp_path}/x/checkpoints/step_2; make room, then continue with"
        in str(said.value)
    )
    checkpoints.verify(tmp_path / "x/checkpoints/step_2")
    assert (tmp_path / "x/model/model.safetensors").is_file(), "the model before stays"
    assert not list(tmp_path.rglob("*.partial"))


def test_a_folder_that_ray_cannot_write_in_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").touch()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "taken"))
    with driver("train", *words(*PATIENT, "run.name=x"), cwd=tmp_path) as process:
        _, err = process.communicate(timeout=400)
    assert process.returncode == 2
    assert err.startswith("toolwright: Ray cannot be started on this machine: [Errno ")
    assert str(tmp_path / "taken") in err
    assert not (tmp_path / "runs").exists()
