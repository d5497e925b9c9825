"""The record of an attempt has one description: a new field is one edit."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tiny import trajectory

import toolwright
from toolwright.record import save

NEW_FIELDS = {
    "    anchor: str": "    language: str | None = None\n",
    "    stop: str": "    retries: int = 0\n    sources: dict[str, Any] = field(default_factory=dict)\n",
}

JOURNEY = """
import pickle, sys
from pathlib import Path
from toolwright import record
from toolwright.runtime import transport
from toolwright.trajectory import Segment, Task, Trajectory

sent = Trajectory(Task("t", []), "g", retries=3, sources={"wiki": ["page"]})
sent.append(Segment("prompt", [1], text="?", language="en"))

buffers = []
in_store = pickle.dumps(record.to_table([sent]), protocol=5, buffer_callback=buffers.append)
table = pickle.loads(in_store, buffers=buffers)
assert record.from_table(table) == [sent]

summary = pickle.loads(pickle.dumps(transport.summary_of(sent)))
ref = transport.TrajectoryRef("ref", lambda ref: table)
seen = transport.RemoteTrajectory(sent.task, summary, ref=ref, row=0)
assert (seen.retries, seen.sources) == (3, {"wiki": ["page"]}) and "table" not in vars(ref), "no fetch"
assert seen.segments[0].language == "en"

record.save(Path("here.parquet"), [sent])
transport.save(Path("there.parquet"), [seen])
assert record.load(Path("here.parquet")) == record.load(Path("there.parquet")) == [sent]

old = record.load(Path("old.parquet"))
assert (old[0].retries, old[0].sources, old[0].segments[0].language) == (0, {}, None)
"""


def test_a_new_field_is_one_edit(tmp_path: Path) -> None:
    """A line more in the dataclass, and the field is in the object store, in the summary and in the file."""
    copy = tmp_path / "toolwright"
    shutil.copytree(Path(toolwright.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    save(tmp_path / "old.parquet", [trajectory([("prompt", [1])])])
    source = (copy / "trajectory.py").read_text()
    for below, line in NEW_FIELDS.items():
        assert source.count(below) == 1
        source = source.replace(below, line + below)
    (copy / "trajectory.py").write_text(source)
    (tmp_path / "journey.py").write_text(JOURNEY)
    ran = subprocess.run(
        [sys.executable, "journey.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
