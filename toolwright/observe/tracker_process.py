"""The process of one tracker: it receives what the run tells, message by message, and ends with the run."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from toolwright.observe.trackers import TRACKERS, TrackedEnd, TrackedRun, TrackedStep, Tracker

ORPHAN_S = 30.0  # for a tracker to finish when the run is gone without a word


def main(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the run's
    os.nice(5)  # where cores are few, the run goes first
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    tracker: Tracker | None = None
    while True:
        try:
            message: dict[str, Any] = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            break
        try:
            if message["kind"] == "begin":
                tracker = TRACKERS.get(message["tracker"]).target(**message["settings"])
                tracker.begin(TrackedRun(**_paths(message["run"], "folder", "files")))
            elif tracker is not None:
                _tell(tracker, message)
            answer = {}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": _sentence(error)}
        if message["kind"] == "finish":
            tracker = None
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            connection.send_bytes(json.dumps(answer).encode())
        except OSError:
            break
    if tracker is not None:
        watchdog = threading.Timer(ORPHAN_S, os._exit, [1])
        watchdog.daemon = True
        watchdog.start()
        tracker.finish(TrackedEnd("failed", {}))


def _tell(tracker: Tracker, message: dict[str, Any]) -> None:
    if message["kind"] == "step":
        step = {"shown": tracker.shown, **_paths(message["step"], "rollouts")}
        tracker.step(TrackedStep(**step))
    else:
        tracker.finish(TrackedEnd(**_paths(message["end"], "report")))


def _paths(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: Path(value) if key in names and value else value for key, value in fields.items()}


def _sentence(error: Exception) -> str:
    """The error in one line of a bearable length."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
