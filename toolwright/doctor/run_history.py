"""A run as its folder tells it: configuration, metrics, log, incidents, timeline, and its last attempts."""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from toolwright.config import rates, yaml_file
from toolwright.config.keys import value_at
from toolwright.config.places import RanksConfig
from toolwright.failures import UserError
from toolwright.observe import rollouts
from toolwright.observe.metrics import Metrics, Row, whole_rows
from toolwright.observe.run_folders import process_alive

LOOKED_AT = 8  # of the last steps, attempt by attempt
MOST_LOG = 1 << 20  # bytes of the log's end
ENOUGH_STEPS = 5  # before anything is said of how a run goes
_PARAMETERS = re.compile(r"model of ([\d,]+) parameters")
COLUMNS = ("group", "reward", "stop", "counts", "timings", "failure_kind", "failure_message")


@dataclass(frozen=True)
class AttemptRow:
    """One attempt without its texts."""

    step: int
    group: str
    reward: float | None
    stop: str
    counts: dict[str, float]
    timings: dict[str, float]
    failure: str  # its kind and message; empty for one that can be learned from


@dataclass
class RunHistory:
    path: Path
    config: dict[str, Any]
    rows: list[Row]  # of metrics.jsonl
    log: list[str] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    command: str = ""

    @classmethod
    def read(cls, path: Path) -> RunHistory:
        """A UserError for a folder that holds no run."""
        if not any((path / name).exists() for name in ("config.yaml", "metrics.jsonl", "log.txt")):
            raise UserError(
                f"{path} is not a run folder: it has neither config.yaml nor metrics.jsonl nor log.txt"
            )
        stated = path / "config.yaml"
        return cls(
            path,
            yaml_file.read_yaml(stated) if stated.exists() else {},
            Metrics.read(path / "metrics.jsonl"),
            _tail(path / "log.txt").splitlines(),
            whole_rows(_tail(path / "incidents.jsonl")),
            _tail(path / "command.txt"),
        )

    def setting(self, key: str, default: Any = None) -> Any:
        """A value of config.yaml by its dotted key."""
        found = value_at(self.config, key)
        return default if found is None else found

    def number(self, key: str) -> int:
        """A numeric setting; 0 if it is `auto`, or no finite number."""
        found = self.setting(key)
        return int(found) if isinstance(found, int | float) and math.isfinite(found) else 0

    @property
    def kind(self) -> str:
        if "algorithm" not in self.config:
            if "eval_every" in self.config:
                return "rm"
            return "sft" if "optimizer" in self.config else "search" if "search" in self.config else "unknown"
        if self.values("policy/preference_accuracy"):
            return "preferences"
        return "evaluation" if (self.path / "rollouts/step_000000.parquet").exists() else "train"

    @property
    def resume_command(self) -> str:
        """The command that goes on with the run; empty if its kind cannot."""
        command = "train" if self.kind == "preferences" else self.kind
        resumes = command in ("train", "sft", "rm")
        return f"toolwright {command} run.name={self.path.name} run.resume=true" if resumes else ""

    @cached_property
    def steps(self) -> list[Row]:
        """The rows of training; step 0 is the evaluation before it."""
        return [row for row in self.rows if row.get("step", 0) > 0]

    @property
    def planned(self) -> int:
        return self.number("train.steps" if "algorithm" in self.config else "steps")

    @property
    def last_step(self) -> int:
        return max((int(row["step"]) for row in self.steps), default=0)

    @property
    def finished(self) -> bool:
        if self.kind == "search":
            searches = [_json(file) for file in (self.path / "searches").glob("*.json")]
            return bool(searches) and all(one.get("why") for one in searches)
        if self.kind in ("evaluation", "unknown"):
            return True
        return self.planned > 0 and self.last_step >= self.planned

    @property
    def alive(self) -> bool | None:
        """True if its process still runs; None if that is not known from here."""
        return process_alive(self.command)

    @property
    def silent_s(self) -> float:
        """Seconds since anything was written."""
        known = ("metrics.jsonl", "log.txt", "timeline.json", "rollouts", "command.txt", "config.yaml")
        written = [os.stat(self.path / name).st_mtime for name in known if (self.path / name).exists()]
        return time.time() - max(written, default=time.time())

    @property
    def judged(self) -> bool:
        """True if there are enough steps to say how training goes."""
        return self.kind == "train" and len(self.steps) >= ENOUGH_STEPS

    def values(self, key: str) -> list[float]:
        """The values of a metric, in all training steps that have it."""
        return [float(row[key]) for row in self.steps if isinstance(row.get(key), int | float)]

    def end(self, key: str) -> float | None:
        """The mean over the last steps."""
        return mean(last(self.values(key)))

    @property
    def reward_range(self) -> tuple[float, float]:
        """The least and the most that any attempt has earned."""
        return min(self.values("reward/min"), default=0.0), max(self.values("reward/max"), default=0.0)

    @cached_property
    def parameters(self) -> int | None:
        found = [match for line in self.log if (match := _PARAMETERS.search(line))]
        return int(found[-1][1].replace(",", "")) if found else None

    @property
    def lr(self) -> float | None:
        """The policy's highest learning rate."""
        return max(self.values("policy/lr"), default=None)

    @property
    def usual_lr(self) -> float | None:
        """The learning rate that `auto` picks for a model of this size."""
        if self.parameters is None:
            return None
        adapted = bool(self.setting("model.lora.rank") or self.setting("model.lora.path"))
        learned = "sft" if self.kind == "sft" else "policy"
        return rates.usual(learned, self.parameters, adapted=adapted)

    @cached_property
    def attempts(self) -> list[AttemptRow]:
        """The attempts of the last steps."""
        import pyarrow.parquet as pq

        found = []
        for step, file in list(rollouts.files(self.path).items())[-LOOKED_AT:]:
            try:
                table = pq.read_table(file, columns=list(COLUMNS)).to_pylist()
            except (OSError, ValueError, KeyError):  # cut short by a crash
                continue
            for row in table:
                failure = f"{row['failure_kind']}: {row['failure_message']}" if row["failure_kind"] else ""
                counts, timings = json.loads(row["counts"]), json.loads(row["timings"])
                found.append(
                    AttemptRow(step, row["group"], row["reward"], row["stop"] or "", counts, timings, failure)
                )
        return found

    def flat_groups(self) -> tuple[int, int]:
        """(groups whose attempts all earned the same, all groups) of the last steps."""
        rewards: dict[str, list[float]] = {}
        for attempt in self.attempts:
            if attempt.reward is not None:
                rewards.setdefault(f"{attempt.step}/{attempt.group}", []).append(attempt.reward)
        compared = [group for group in rewards.values() if len(group) > 1]
        return sum(max(group) - min(group) < 1e-9 for group in compared), len(compared)

    @cached_property
    def timeline(self) -> list[dict[str, Any]]:
        """The last events; the file has one a line."""
        return whole_rows(_tail(self.path / "timeline.json"))

    def facts(self) -> dict[str, Any]:
        return {
            "run": str(self.path),
            "kind": self.kind,
            "step": self.last_step,
            "planned": self.planned,
            "finished": self.finished,
            "alive": self.alive,
        }

    def headline(self) -> str:
        what = {
            "train": f"{self.setting('algorithm.name')} on {self.setting('task.name')}",
            "preferences": f"{self.setting('algorithm.name')} on compared answers",
            "sft": f"sft on {self.setting('task.name')}",
            "rm": f"rm on {self.setting('task.name')}",
            "evaluation": f"evaluation on {self.setting('task.name')}",
            "search": "a search for workflows",
        }.get(self.kind, "a run of an unknown kind")
        where = (
            f", step {self.last_step} of {self.planned}" if self.planned and self.kind != "evaluation" else ""
        )
        state = "" if self.finished else ", running" if self.alive else ", not finished"
        return f"{self.path}: {what}{where}{self._ranks()}{state}"

    def _ranks(self) -> str:
        """Describe how the policy's processes divide its work, if there are several."""
        asked = self.setting("runtime.placement.policy.ranks", 1)
        layout = RanksConfig.model_validate({"ranks": asked}).layout
        several = self.setting("runtime.name") == "ray" and layout.size > 1
        return f", over {layout.size} ranks ({layout})" if several else ""


def last(values: Sequence[float]) -> list[float]:
    """The last fifth, from 3 to 20 of them."""
    return list(values[-min(20, max(3, len(values) // 5)) :])


def first(values: Sequence[float]) -> list[float]:
    return list(values[: min(20, max(3, len(values) // 5))])


def mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def error_of(values: Sequence[float]) -> float:
    """The standard error of their mean."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MOST_LOG))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
