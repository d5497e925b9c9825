"""TensorBoard: event files in the run folder, for `tensorboard --logdir runs`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from toolwright.observe.trackers import TRACKERS, TrackedEnd, TrackedRun, TrackedStep, Tracker


@TRACKERS.register("tensorboard", needs=("tensorboard",))
class TensorBoard(Tracker):
    """`dir`: where the files go instead, in a folder named after the run."""

    def __init__(self, *, dir: str | None = None) -> None:
        self.dir = dir

    def begin(self, run: TrackedRun) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.last = run.step
        self.writer = EventFileWriter(str(Path(self.dir) / run.name if self.dir else run.files))
        if run.resumed:  # what was written after the checkpoint is taken back
            self._write(session_log=SessionLog(status=SessionLog.START), step=run.step + 1)
        self.text("config", f"```json\n{json.dumps(run.config, indent=2, ensure_ascii=False)}\n```", run.step)
        if run.notes:
            self.text("notes", run.notes, run.step)
        self.writer.flush()

    def step(self, step: TrackedStep) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in step.metrics.items()]
        self._write(summary=Summary(value=values), step=step.number, wall_time=step.time)
        if step.attempts:
            self.text("attempts", _markdown(step.rows), step.number)
        self.last = step.number
        self.writer.flush()

    def finish(self, end: TrackedEnd) -> None:
        self.text("summary", "\n".join(f"    {line}" for line in end.text.splitlines()), self.last)
        self.writer.close()

    def text(self, tag: str, markdown: str, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.plugins.text.metadata import create_summary_metadata

        value = Summary.Value(
            tag=tag,
            metadata=create_summary_metadata(display_name=tag, description=""),
            tensor=TensorProto(dtype="DT_STRING", string_val=[markdown.encode("utf-8", "replace")]),
        )
        self._write(summary=Summary(value=[value]), step=step)

    def _write(self, *, wall_time: float | None = None, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self.writer.add_event(Event(wall_time=time.time() if wall_time is None else wall_time, **fields))


def _markdown(rows: list[list[Any]]) -> str:
    """A table; what was sampled stands in it as code, so that no Markdown of its own counts."""
    lines = ["|" + "|".join(Tracker.columns) + "|", "|" + "---|" * len(Tracker.columns)]
    return "\n".join([*lines, *("|" + "|".join(map(_cell, row)) + "|" for row in rows)])


def _cell(value: Any) -> str:
    if not isinstance(value, str):
        return "" if value is None else f"{value:g}"
    text = " ".join(value.split()).replace("|", "¦").replace("`", "'")
    return f"`{text}`" if text else ""
