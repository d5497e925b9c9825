"""The walk in docs/architecture.md is the one that `toolwright train task=sums` takes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "architecture.md"
STOP = re.compile(r"^\| \d+ \| `([\w/.]+)` \| `([\w.]+)` \|", re.MULTILINE)
TRACE = """
import json, os, sys, threading
import toolwright
from toolwright.cli import main

ROOT = os.path.dirname(toolwright.__file__) + os.sep
calls = []

def note(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(ROOT):
        calls.append((code.co_filename[len(ROOT):].replace(os.sep, "/"), code.co_qualname))

threading.setprofile(note)
sys.setprofile(note)
try:
    main(["train", "task=sums", "train.steps=1", "rollout.prompts=2", "rollout.samples=2",
          "task.held_out_size=1"])
finally:
    sys.setprofile(None)
    json.dump(calls, open("calls.json", "w"))
"""


@pytest.mark.slow
def test_a_run_goes_the_way_that_the_architecture_describes(tmp_path: Path):
    stops = STOP.findall(DOCS.read_text())
    subprocess.run([sys.executable, "-c", TRACE], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    calls = [tuple(call) for call in json.loads((tmp_path / "calls.json").read_text())]
    place = -1
    for stop in stops:
        assert stop in calls, f"{stop} is never called"
        assert stop in calls[place + 1 :], f"{stop} is not called after the stop before it"
        place = calls.index(stop, place + 1)


def test_the_walk_leads_through_45_files_at_most():
    assert len({file for file, _ in STOP.findall(DOCS.read_text())}) <= 45


def test_the_walk_in_chinese_has_the_same_stops():
    chinese = DOCS.with_name("architecture.zh.md").read_text(encoding="utf-8")
    assert STOP.findall(chinese) == STOP.findall(DOCS.read_text(encoding="utf-8"))
