"""A folder of answers that a served model gave, and of the scores that they got later.

`answers/*.parquet` has an attempt (`record.py`) for each answer: the prompt and what was sampled, as tokens.
`feedback.jsonl` has a line for each score. An answer whose prompt begins with the tokens of an earlier one
goes on from it: that one is its `parent`, and both are turns of one conversation.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from toolwright import record
from toolwright.failures import UserError
from toolwright.trajectory import Segment, Trajectory

FeedbackScope = Literal["conversation", "answer"]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Feedback:
    """A score for the conversation up to an answer, or for that answer alone."""

    id: str
    score: float
    text: str | None = None
    scope: FeedbackScope = "conversation"
    time: float = 0.0


@dataclass(frozen=True)
class StoredAnswer:
    """An answer of the record: where it lies, and how it was sampled."""

    id: str
    file: str
    row: int
    prompt: list[dict[str, Any]]
    group: str  # the same for equal first prompts
    parent: str | None
    tokens: int  # of the conversation up to its end
    temperature: float
    tokenizer: str


class RecordFolder:
    def __init__(self, path: Path) -> None:
        self.path, self._number, self._lock = path, 0, threading.Lock()

    @property
    def files(self) -> list[Path]:
        """The oldest first."""
        return sorted((self.path / "answers").glob("*.parquet"))

    def create(self) -> None:
        """Create the folder, readable by its owner only: conversations are private."""
        try:
            (self.path / "answers").mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
            (self.path / "feedback.jsonl").touch()
        except OSError as error:
            raise UserError(f"{self.path} cannot keep a record: {error.strerror}") from None

    def save(self, answers: Sequence[Trajectory], *, limit: int) -> None:
        """Add a file, whole or not at all. Beyond `limit` bytes in all, the oldest files go."""
        with self._lock:
            self._number += 1
            name = f"{time.time_ns():020d}-{os.getpid()}-{self._number}.parquet"
            record.save(self.path / "answers" / name, answers)
            sizes = [(file, file.stat().st_size) for file in self.files]
            total = sum(size for _, size in sizes)
            for file, size in sizes[:-1]:
                if total <= limit:
                    break
                file.unlink()
                total -= size

    def add_feedback(self, feedback: Feedback) -> None:
        line = json.dumps(asdict(feedback), ensure_ascii=True) + "\n"
        with self._lock, (self.path / "feedback.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def feedback(self) -> dict[str, Feedback]:
        """The last score of each answer, by its id. A line that was cut short is skipped."""
        found: dict[str, Feedback] = {}
        file = self.path / "feedback.jsonl"
        for number, line in enumerate(
            file.read_text(encoding="utf-8").splitlines() if file.is_file() else (), 1
        ):
            try:
                one = Feedback(**json.loads(line))
            except (ValueError, TypeError):
                log.warning("%s: line %d is not feedback and is ignored", file, number)
                continue
            found.pop(one.id, None)
            found[one.id] = one
        return found

    def answers(self) -> dict[str, StoredAnswer]:
        """All answers by id, without reading their tokens."""
        found = {}
        for file in self.files:
            try:
                table = pq.read_table(file, columns=["task_id", "prompt", "extra_info", "group"])
            except FileNotFoundError:
                continue  # a server made room meanwhile
            for row, one in enumerate(table.to_pylist()):
                known = json.loads(one["extra_info"])
                found[one["task_id"]] = StoredAnswer(
                    id=one["task_id"],
                    file=str(file.resolve()),
                    row=row,
                    prompt=json.loads(one["prompt"]),
                    group=one["group"],
                    parent=known["parent"],
                    tokens=known["tokens"],
                    temperature=known["temperature"],
                    tokenizer=known["tokenizer"],
                )
        return found


@dataclass(frozen=True)
class ScoredConversation:
    """The answers of a conversation up to the last one, and of each: its score, and whether to learn from it.
    The turns that another conversation shares and has learned from are only read."""

    turns: list[tuple[StoredAnswer, float | None, bool]]

    @property
    def last(self) -> StoredAnswer:
        return self.turns[-1][0]

    def plain(self) -> dict[str, Any]:
        """Return the conversation as JSON, for a task; `written` takes it."""
        parts = [
            {"file": one.file, "row": one.row, "score": score, "learn": learn}
            for one, score, learn in self.turns
        ]
        known = self.last
        return {
            "turns": parts,
            "tokens": known.tokens,
            "temperature": known.temperature,
            "tokenizer": known.tokenizer,
        }


def conversations(folder: RecordFolder) -> list[ScoredConversation]:
    """Every scored answer in exactly one conversation, each sampled token learned from once at the most. The
    newest score comes first: it is of the longest conversation."""
    answers, scores = folder.answers(), folder.feedback()
    learned: set[str] = set()
    found = []
    for id, feedback in reversed(scores.items()):
        if id in learned or id not in answers:
            continue
        turns: list[tuple[StoredAnswer, float | None, bool]] = []
        at: str | None = id
        while at is not None and (one := answers.get(at)) is not None:
            wanted = at == id or feedback.scope == "conversation"
            given = scores[at].score if at in scores else None
            turns.append((one, given, wanted and at not in learned))
            at = one.parent
        learned.update(one.id for one, _, learn in turns if learn)
        found.append(ScoredConversation(turns[::-1]))
    return found[::-1]


def written(turns: Sequence[dict[str, Any]]) -> list[Segment]:
    """The segments of a recorded conversation, with the tokens exactly as they were sampled."""
    segments: list[Segment] = []
    done = 0
    for part in turns:
        prompt, said = record.load(Path(part["file"]), [part["row"]])[0].segments
        segments.append(
            Segment("environment" if segments else "prompt", prompt.tokens[done:], text=prompt.text)
        )
        if part["learn"]:
            segments.append(replace(said, reward=part["score"]))
        else:
            segments.append(Segment("environment", said.tokens, text=said.text))
        done = len(prompt.tokens) + len(said.tokens)
    return segments
