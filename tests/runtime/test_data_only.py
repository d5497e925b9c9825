"""Nothing but data crosses: a whole run whose every remote call is walked, arguments and results."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from toolwright.runtime import cluster as cluster_module
from toolwright.trainer.loop import train

from .clusters import PATIENT, configured
from .watched import check

pytestmark = pytest.mark.xdist_group("ray")


def test_only_configuration_trajectories_tensors_and_metrics_cross(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = cluster_module.ClusterCrew

    def watched(*args: Any, members: str) -> Any:
        return whole(*args, members="tests.runtime.watched:members")

    monkeypatch.setattr(cluster_module, "ClusterCrew", watched)
    own = ["algorithm=ppo", "algorithm.kl.where=reward", "train.steps=2", "checkpoint.every=1"]
    config = configured(f"run.dir={tmp_path}", "run.name=x", *PATIENT, *own)
    train(config, command=["toolwright"])
    over_ranks = ["runtime.placement.policy.ranks=2", "train.steps=3", "run.resume=true"]
    resumed = configured(f"run.dir={tmp_path}", "run.name=x", *PATIENT, *own, *over_ranks)
    train(resumed, command=["toolwright"])


@pytest.mark.parametrize("thing", [threading.Lock(), print, partial(print), object(), Path("/")])
def test_the_walk_finds_what_is_no_data(thing: Any) -> None:
    with pytest.raises(TypeError, match="crossed"):
        check({"a": [1, (2.0, thing)]}, "argument")
