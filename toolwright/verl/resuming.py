"""Where a translated run writes, and whether it continues the run that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolwright.verl.translation import Translation

MODE, FROM = "trainer.resume_mode", "trainer.resume_from_path"
NOT_OURS = (
    "not a run folder of Toolwright; {}'s checkpoints cannot be resumed here, but their Hugging Face export "
    "can be a model.path"
)


def is_resumable(folder: Path) -> bool:
    """A folder with attempts or metrics alone is a run too, and has nothing to resume with."""
    return (folder / "config.yaml").is_file()


def run_of(place: Path) -> Path:
    """The run folder of a checkpoint in it; other folders as they are."""
    return place.parent.parent if place.parent.name == "checkpoints" else place


def begin_or_resume(to: Translation, folder: Path, *, mode: str, resume_from: Any, source: str) -> None:
    """Set the run's folder as verl's `trainer.resume_mode` says. verl writes over what is there, or continues
    it; a run here is never written over."""
    place, resume = folder, False
    if mode == "resume_path" and not resume_from:
        to.refuse(f"needs {FROM}", MODE)
    elif mode == "resume_path":
        place, source, resume = run_of(Path(str(resume_from)).expanduser()), FROM, True
        if not is_resumable(place):
            to.refuse(NOT_OURS.format("verl"), FROM)
    elif mode == "auto":
        if resume := is_resumable(place):
            to.note(f"resumes the run in {place}", MODE)
    elif mode == "disable" and place.exists():
        taken, number = place, 2
        while place.exists():
            place, number = taken.with_name(f"{taken.name}-{number}"), number + 1
        to.note(f"{taken} exists and is not overwritten; this run is {place}", MODE)
    elif mode != "disable":
        to.refuse("expected auto, disable or resume_path", MODE)
    to.set_folder(str(place), source)
    to.set("run.resume", resume, MODE)


def keep_all(every: int, steps: int | None) -> int:
    """The value of checkpoint.keep that removes no checkpoint of a run of so many steps."""
    return (steps or 1_000_000) // every + 2 if every else 2
