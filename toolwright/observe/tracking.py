"""Feeds a run's trackers: each has a queue, a thread and a process of its own, and the run waits for none.

A tracker that lags loses steps, which are counted. One that hangs, dies or fails again and again is left
behind, and the run's log says so once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Any

from toolwright.observe.metrics import Metrics
from toolwright.observe.summary import closing_table, outcome
from toolwright.observe.tracker_config import TrackerConfig, read_trackers

QUEUED = 64  # steps that wait for a tracker
FAILURES = 5  # in a row, then it is left behind
GRACE_S = 5.0  # for its process to end once all is said
LOOK_AGAIN_S = 0.2
SECRET = re.compile(r"(api_?key|token|secret|password)$", re.IGNORECASE)

# The child finds the parent's modules from any working directory; `-m` would need an installed package.
_BOOTSTRAP = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
_BOOTSTRAP += "from toolwright.observe import tracker_process; tracker_process.main(int(sys.argv[2]))"

Message = dict[str, Any]


class TrackerLeft(Exception):
    """The tracker hangs, is gone or does not work; the run goes on without it."""


class Tracking:
    """The trackers of one run. Use it in a `with` statement around the steps.

    Args:
        trackers: Settings by tracker, as the configuration has them.
        command: train or sft.
        folder: The run folder.
        config: The resolved configuration.
        total: The number of steps that the run is to take.
        step: The last one that is done.
        say: Called with each message, in the thread of the run.
    """

    def __init__(
        self,
        trackers: Mapping[str, Any],
        *,
        command: str,
        folder: Path,
        config: Mapping[str, Any],
        total: int,
        step: int = 0,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.last, self.total, self.say = folder.resolve(), step, total, say
        self.feeds: list[TrackerFeed] = []
        configs = read_trackers(trackers)
        if not configs:
            return
        place = folder / "trackers"
        place.mkdir(parents=True, exist_ok=True)
        id, resumed = _run_id(place / "id")
        run = {"id": id, "resumed": resumed, "command": command, "step": step, "folder": str(self.folder)}
        run["config"] = without_secrets(config)
        for one in configs:
            own = {"name": one.name or folder.name, "notes": one.notes}
            own["files"] = str((place / one.file).resolve())
            self.feeds.append(TrackerFeed(one, {**run, **own}, log=place / f"{one.file}.log"))

    def __enter__(self) -> Tracking:
        for feed in self.feeds:
            feed.start()
        return self

    def step(self, number: int, metrics: Mapping[str, Any]) -> None:
        """Tell all trackers of a step that was written down. Takes no time and never raises."""
        self.last = number
        if not self.feeds:
            return
        file = self.folder / "rollouts" / f"step_{number:06d}.parquet"
        numbers = {name: float(value) for name, value in metrics.items() if not isinstance(value, str)}
        step = {"number": number, "metrics": numbers, "time": time.time(), "rollouts": str(file)}
        for feed in self.feeds:
            feed.put({"kind": "step", "step": step})
        self._pass_on()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.feeds:
            status = "failed" if kind else "finished" if self.last >= self.total else "stopped"
            end = {"kind": "finish", "end": self._end(status)}
            for feed in self.feeds:
                feed.end(end)
            for feed in self.feeds:
                feed.join()
            self._pass_on()

    def _end(self, status: str) -> dict[str, Any]:
        """Describe the end of the run for the trackers. A run that failed may have no metrics to read."""
        end: dict[str, Any] = {"status": status, "summary": {}}
        with suppress(Exception):
            found = outcome(Metrics.read(self.folder / "metrics.jsonl"))
            end["summary"] = {"status": status, "steps": found.steps, "seconds": round(found.seconds, 3)}
            for name in ("before", "after", "best"):
                if (point := getattr(found, name)) is not None:
                    end["summary"][f"held_out_{found.measure}_{name}"] = point[1]
            end["text"] = closing_table(self.folder)
        report = self.folder / "report.html"
        end["report"] = str(report) if report.exists() else None
        return end

    def _pass_on(self) -> None:
        for feed in self.feeds:
            while feed.messages:
                self.say(f"tracker {feed.config.label}: {feed.messages.popleft()}")


class TrackerFeed:
    """A tracker of the run: what waits for it, and the thread that tells its process."""

    def __init__(self, config: TrackerConfig, run: Message, *, log: Path) -> None:
        self.config, self.run, self.log = config, run, log
        self.messages: deque[str] = deque()  # for the run to say
        self.untold = 0  # steps that the tracker was not told of, or failed at
        self._waiting: deque[Message] = deque()
        self._changed = threading.Condition()
        self._end: Message | None = None
        self._until = float("inf")
        self._left = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name=f"tracker {config.label}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, message: Message) -> None:
        with self._changed:
            if self._left or len(self._waiting) >= QUEUED:
                self.untold += 1
            else:
                self._waiting.append(message)
                self._changed.notify()

    def end(self, message: Message) -> None:
        """Tell the tracker that the run has ended, after the steps that still wait, within `timeout_s`."""
        with self._changed:
            self._end, self._until = message, time.monotonic() + self.config.timeout_s
            self._changed.notify()

    def join(self) -> None:
        self._thread.join(max(0.0, self._until - time.monotonic()) + GRACE_S)
        if self._thread.is_alive():  # it waits to write to a process that does not read
            self._kill()
            self._leave(self._late())
        if self.untold:
            self.messages.append(f"{self.untold} of the run's steps were not tracked")

    def _run(self) -> None:
        try:
            self._open()
            begin = {"tracker": self.config.tracker, "settings": self.config.settings, "run": self.run}
            if error := self._ask({"kind": "begin", **begin}):
                raise TrackerLeft(f"cannot start: {error}")
            failed = 0
            while (message := self._next())["kind"] == "step":
                error = self._ask(message)
                failed = failed + 1 if error else 0
                self.untold += bool(error)
                if failed == 1:
                    self.messages.append(f"step {message['step']['number']} was not tracked: {error}")
                if failed >= FAILURES:
                    raise TrackerLeft(f"failed {failed} times in a row, the last time with {error}")
            if error := self._ask(message):
                raise TrackerLeft(f"did not finish: {error}")
        except TrackerLeft as why:
            self._leave(str(why))
        except Exception as error:  # a thread must not end without a word
            self._leave(f"{type(error).__name__}: {error}")
        finally:
            self._close()

    def _next(self) -> Message:
        """Return the next message: the end of the run when nothing else waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._end is not None)
            message = self._waiting.popleft() if self._waiting else self._end
        assert message is not None
        if message["kind"] == "step" and self.config.attempts is not None:
            shown = None if self.config.attempts == "all" else self.config.attempts
            message = {**message, "step": {**message["step"], "shown": shown}}
        return message

    def _ask(self, message: Message) -> str:
        """Tell the process, and wait until it has done what there was to do. Returns its error, if any."""
        assert self._connection is not None
        limit = time.monotonic() + self.config.timeout_s
        try:
            self._connection.send_bytes(json.dumps(message, default=str).encode())
            while not self._connection.poll(LOOK_AGAIN_S):
                if time.monotonic() > min(limit, self._until):  # the run may have ended meanwhile
                    raise TrackerLeft(self._late())
            answer = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise TrackerLeft("its process died") from None
        return str(answer.get("error", ""))

    def _late(self) -> str:
        return f"did not answer within trackers.{self.config.label}.timeout_s={self.config.timeout_s:g} s"

    def _leave(self, why: str) -> None:
        with self._changed:
            if self._left:
                return
            self._left = True
            self.untold += len(self._waiting)
            self._waiting.clear()
        self.messages.append(f"{why}; the run continues without it, and {self.log} has its output")

    def _open(self) -> None:
        Path(self.run["files"]).mkdir(parents=True, exist_ok=True)
        ours, theirs = Pipe()
        modules = [str(Path(entry).resolve()) for entry in sys.path]
        command = [sys.executable, "-c", _BOOTSTRAP, json.dumps(modules), str(theirs.fileno())]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # its children end with it, and Ctrl-C is the run's
            )
        theirs.close()
        self._connection = ours

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()  # the process ends when it sees this
        if self._process is not None:
            if not self._left:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(GRACE_S)
            self._kill()

    def _kill(self) -> None:
        """Kill the process and its children, which may outlive it."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def without_secrets(value: Any) -> Any:
    """A configuration as it may leave this machine."""
    if isinstance(value, Mapping):
        return {
            key: "(hidden)"
            if isinstance(item, str) and item and SECRET.search(str(key))
            else without_secrets(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets(item) for item in value]
    return value


def _run_id(file: Path) -> tuple[str, bool]:
    """The id that trackers know the run by, and whether it had one before."""
    if file.exists():
        return file.read_text().strip(), True
    id = uuid.uuid4().hex[:16]
    file.write_text(id + "\n")
    return id, False
