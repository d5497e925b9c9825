"""Runs over a cluster of the tests' own, and what they need to be told apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.settings import configure
from tests.trainer.runs import MODEL
from toolwright.config import schema

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

SMALL = [
    *(f"model.{key}={value}" for key, value in MODEL.items()),
    f"task.name={HERE}/echoes.py:tasks",
    "task.held_out_size=8",
    f"rollout.agent={HERE}/echoes.py:Caller",
    f"tools.echo.path={HERE}/echoes.py:echo",
    "rollout.max_tokens=1",
    "rollout.max_turns=2",
    "rollout.prompts=4",
    "rollout.samples=4",
    "update.policy.lr=1e-2",
    "train.steps=3",
    "eval.every=0",
    "run.threads=1",
]
# Whoever watches over it on a busy machine needs patience.
PATIENT = ["runtime=ray", "runtime.heartbeat_timeout_s=120", "runtime.start_timeout_s=240"]


def words(*own: str) -> list[str]:
    """What a test says itself wins."""
    return list({word.split("=")[0]: word for word in [*SMALL, *own]}.values())


def configured(*own: str) -> schema.Config:
    return configure(words(*own))


@contextmanager
def walked() -> Iterator[None]:
    """Roles started meanwhile refuse whatever is not data, in every call's arguments and results: anything
    else ends the run."""
    from toolwright.runtime import cluster

    whole = cluster.RayRoles

    def watched(builder: str, *args: Any) -> Any:
        return whole("tests.runtime.watched:build", *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "RayRoles", watched)
        yield


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Metrics less those that say how long something took, or where it ran."""
    apart = ("time/", "use/", "runtime/", "throughput/")
    return [{key: value for key, value in row.items() if not key.startswith(apart)} for row in rows]
