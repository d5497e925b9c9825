"""Disks and folders that let a run down: a sentence, exit code 2, and nothing whole is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.disk import permissions_count
from toolwright.cli import main
from toolwright.learner import checkpoints
from toolwright.trainer.loop import TrainingLoop

from .runs import metrics, trained, words

RESUMED = ("run.name=x", "run.resume=true", "train.steps=3")

Run = Callable[..., str]


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """What a command says that ends with exit code 2: one line."""
    monkeypatch.chdir(tmp_path)

    def one(*line: str) -> str:
        capsys.readouterr()
        assert main(["train", *line]) == 2
        said = capsys.readouterr().err
        assert said.startswith("toolwright: ")
        assert said.count("\n") == 1, said
        return said

    return one


@pytest.fixture(scope="module")
def of_two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs"), "run.name=x", "checkpoint.every=1")


@pytest.fixture
def run(of_two_steps: Path, tmp_path: Path) -> Path:
    """A finished run with two checkpoints, to be damaged."""
    return Path(shutil.copytree(of_two_steps, tmp_path / "runs/x"))


def flipped(file: Path, start: int, stop: int) -> None:
    content = bytearray(file.read_bytes())
    content[start:stop] = bytes(byte ^ 0xFF for byte in content[start:stop])
    file.write_bytes(content)


def an_empty_state(checkpoint: Path) -> None:
    (checkpoint / "state.json").write_text("{}")


def a_state_that_is_a_list(checkpoint: Path) -> None:
    (checkpoint / "state.json").write_text("[]")


def flipped_first_bytes(checkpoint: Path) -> None:
    flipped(checkpoint / "tensors.pt", 0, 16)


def half_of_the_tensors(checkpoint: Path) -> None:
    file = checkpoint / "tensors.pt"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def no_tensors(checkpoint: Path) -> None:
    (checkpoint / "tensors.pt").unlink()


def a_flipped_byte_in_the_tensors(checkpoint: Path) -> None:
    middle = (checkpoint / "tensors.pt").stat().st_size // 2
    flipped(checkpoint / "tensors.pt", middle, middle + 1)


def damaged_checksums(checkpoint: Path) -> None:
    (checkpoint / "checksums.json").write_text("{")


DAMAGE = [an_empty_state, a_state_that_is_a_list, flipped_first_bytes, half_of_the_tensors, no_tensors]
SEEN_BY_CHECKSUMS = [a_flipped_byte_in_the_tensors, damaged_checksums]


class TestABrokenCheckpoint:
    @pytest.mark.parametrize("checked", [True, False], ids=["with checksums", "without"])
    @pytest.mark.parametrize("damage", DAMAGE)
    def test_is_named_and_the_one_before_it_used(
        self, damage: Callable[[Path], None], checked: bool, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Also one without checksums, as they were written once."""
        if not checked:
            (run / "checkpoints/step_2/checksums.json").unlink()
        self.goes_on_after(damage, run, capsys)

    @pytest.mark.parametrize("damage", SEEN_BY_CHECKSUMS)
    def test_is_known_by_its_checksums(
        self, damage: Callable[[Path], None], run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.goes_on_after(damage, run, capsys)

    def goes_on_after(
        self, damage: Callable[[Path], None], run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        damage(run / "checkpoints/step_2")
        trained(run.parent, *RESUMED, "checkpoint.keep=1")
        said = capsys.readouterr().out
        assert f"checkpoint {run}/checkpoints/step_2 cannot be read: " in said
        assert "it is now step_2.broken, and the run goes on from step_1\n" in said
        assert "going on after step 1\n" in said
        assert [row["step"] for row in metrics(run)] == [0, 1, 2, 3]
        assert {p.name for p in (run / "checkpoints").iterdir()} == {"step_3", "step_2.broken"}

    def test_ends_the_run_where_none_is_whole(self, run: Path, ends: Run) -> None:
        an_empty_state(run / "checkpoints/step_1")
        a_flipped_byte_in_the_tensors(run / "checkpoints/step_2")
        before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
        said = ends(*RESUMED)
        assert "no checkpoint in runs/x/checkpoints is whole: checkpoint runs/x/checkpoints/step_2 " in said
        assert "tensors.pt is damaged: its checksum differs from the recorded one; " in said
        assert "start a new run, or remove them to begin this one again" in said
        assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_a_checkpoint_without_checksums_is_read_as_before(run: Path, tmp_path: Path) -> None:
    whole = trained(tmp_path, "run.name=whole", "train.steps=3")
    (run / "checkpoints/step_2/checksums.json").unlink()
    resumed = trained(run.parent, *RESUMED)
    assert metrics(resumed)[3]["policy/loss"] == metrics(whole)[3]["policy/loss"]


def test_every_file_of_a_checkpoint_has_its_checksum(run: Path) -> None:
    checkpoint = run / "checkpoints/step_2"
    listed = json.loads((checkpoint / "checksums.json").read_text())
    assert listed.keys() == {"state.json", "tensors.pt"}
    assert listed["tensors.pt"][0] == (checkpoint / "tensors.pt").stat().st_size
    checkpoints.verify(checkpoint)


def test_foreign_files_in_rollouts_stay_there(run: Path) -> None:
    rollouts = run / "rollouts"
    (rollouts / "mine").mkdir()
    (rollouts / "mine/notes.txt").write_text("mine")
    (rollouts / "notes.txt").write_text("mine")
    (rollouts / "step_000007.parquet").write_bytes(b"of a step that was not kept")
    (rollouts / "step_000007.partial").write_bytes(b"")
    trained(run.parent, *RESUMED)
    assert {p.name for p in rollouts.iterdir()} == {
        *("mine", "notes.txt"),
        *(f"step_00000{step}.parquet" for step in (1, 2, 3)),
    }
    assert (rollouts / "mine/notes.txt").read_text() == "mine"


class TestARunFolderThatCannotBeWritten:
    def test_at_the_start(self, tmp_path: Path, ends: Run) -> None:
        (tmp_path / "runs").mkdir(mode=0o555)
        with permissions_count():
            said = ends(*words("run.name=x"))
        assert "no run can be kept in runs/x: runs cannot be written to; choose another run.dir" in said

    def test_when_it_is_gone_on_with(self, run: Path, ends: Run) -> None:
        run.chmod(0o555)
        with permissions_count():
            assert "no run can be kept in runs/x: runs/x cannot be written to" in ends(*RESUMED)
        run.chmod(0o755)

    def test_since_a_file_is_in_its_place(self, tmp_path: Path, ends: Run) -> None:
        (tmp_path / "runs").touch()
        assert "no run can be kept in runs/x: runs is not a folder" in ends(*words("run.name=x"))

    def test_a_read_only_file_in_the_run_folder_is_named(self, run: Path, ends: Run) -> None:
        """The folder itself can be written to."""
        (run / "command.txt").chmod(0o444)
        with permissions_count():
            said = ends(*RESUMED)
        assert "cannot write in runs/x: [Errno 13] Permission denied: 'runs/x/command.txt'; " in said
        assert "the last whole checkpoint is runs/x/checkpoints/step_2" in said


def made_read_only(run: Path) -> None:
    for place in (run, run / "rollouts", run / "checkpoints", run / "model"):
        place.chmod(0o555)


def removed(run: Path) -> None:
    shutil.rmtree(run)


def replaced_by_a_file(run: Path) -> None:
    shutil.rmtree(run)
    run.touch()


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (made_read_only, "cannot write in runs/x: "),
        (removed, "the run folder runs/x is gone: "),
        (replaced_by_a_file, "the run folder runs/x is gone: "),
    ],
)
@pytest.mark.parametrize("when", ["while it learns", "before a checkpoint"])
def test_a_run_folder_that_changes_under_a_run(
    happens: Callable[[Path], None],
    said: str,
    when: str,
    tmp_path: Path,
    ends: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, name = tmp_path / "runs/x", "learn" if when == "while it learns" else "save"
    does = getattr(TrainingLoop, name)

    def after_that(trainer: TrainingLoop, *args: Any, **given: Any) -> Any:
        if trainer.step_done == (1 if name == "learn" else 2):
            happens(run)
        return does(trainer, *args, **given)

    monkeypatch.setattr(TrainingLoop, name, after_that)
    with permissions_count():
        told = ends(*words("run.name=x", "train.steps=3", "checkpoint.every=1"))
    if name == "save":
        assert "could not write checkpoint runs/x/checkpoints/step_2: " in told
    else:
        assert said in told
    if happens is made_read_only:
        made_writable(run)
        assert "runs/x/checkpoints/step_1" in told
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        assert main(["train", "run.name=x", "run.resume=true"]) == 0
        assert [row["step"] for row in metrics(run)] == [0, 1, 2, 3]
    else:
        assert not run.is_dir(), "nothing is made where somebody has cleared up"


def made_writable(run: Path) -> None:
    for place in (run, run / "rollouts", run / "checkpoints", run / "model"):
        place.chmod(0o755)
