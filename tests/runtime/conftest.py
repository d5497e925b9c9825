"""A Ray cluster for the tests of a process: a head node, to which a test may add others.

Tests that start Ray are in two groups, `ray runs` and `ray deaths`, for two processes side by side.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolwright.rewards import SCORERS
from toolwright.trainer.loop import TrainingLoop

from .clusters import PATIENT, ROOT, configured

Build = Callable[..., TrainingLoop]


@pytest.fixture(scope="session")
def deadly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deadly")


@pytest.fixture(scope="package")  # tests of other rooms need not run beside it
def cluster(deadly: Path) -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), before.get("PYTHONPATH", "")])
    os.environ["DEADLY"] = str(deadly)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray notes the cluster in a file of its folder, which only the user who came first may write. The name is
    # short, because the paths of sockets below it may have 107 bytes.
    folder = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="tw-", dir="/tmp")
    # Nobody reads its logs or has it scaled.
    head = {"num_cpus": 2, "include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    made = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=made.address, namespace="toolwright", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
    os.environ.clear()
    os.environ.update(before)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def registry() -> Iterator[None]:
    """The tests' own task file registers a scorer; other rooms' tests count what is registered."""
    SCORERS.names()
    before = dict(SCORERS._entries)
    yield
    SCORERS._entries = before
    for name in [name for name in sys.modules if name.startswith("toolwright_user_")]:
        del sys.modules[name]


@pytest.fixture
def build(cluster: Any) -> Iterator[Build]:
    """A trainer over the tests' cluster with the settings that a test says."""
    made: list[TrainingLoop] = []

    def one(*own: str) -> TrainingLoop:
        made.append(TrainingLoop(configured(*PATIENT, *own)))
        return made[-1]

    yield one
    for trainer in made:
        trainer.close()
