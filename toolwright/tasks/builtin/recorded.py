"""Answers that `toolwright serve --record` kept and that got scores: nothing is sampled."""

from __future__ import annotations

from pathlib import Path

from toolwright.failures import UserError
from toolwright.tasks import TASKS, TaskSet
from toolwright.tasks.preferences import ANSWERS
from toolwright.tasks.record_folder import RecordFolder, ScoredConversation, conversations
from toolwright.trajectory import Task


@TASKS.register("recorded")
def recorded(*, folder: str) -> TaskSet:
    """A task for each first prompt, with the conversations that began with it."""
    path = Path(folder).expanduser()
    if not (path / "answers").is_dir():
        raise UserError(
            f"task.params.folder={folder} is not a record; `toolwright serve MODEL --record {folder}` writes "
            "one"
        )
    by_prompt: dict[str, list[ScoredConversation]] = {}
    for one in conversations(RecordFolder(path)):
        by_prompt.setdefault(one.turns[0][0].group, []).append(one)
    if not by_prompt:
        raise UserError(f"{folder} has no scored answers; scores are posted to /v1/feedback of the server")
    tasks = [
        Task(
            id=f"recorded:{group}",
            prompt=found[0].turns[0][0].prompt,
            data_source="recorded",
            extra_info={ANSWERS: [one.plain() for one in found]},
        )
        for group, found in by_prompt.items()
    ]
    return TaskSet(tasks, scorer="environment")
