"""`ray job submit`: a run as a job of a cluster with its dashboard, which comes with ray[default]."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.runs import metrics

from .clusters import PATIENT, ROOT, words

pytest.importorskip("aiohttp_cors", reason="the job server comes with ray[default]")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray runs")]

RAY = [sys.executable, "-m", "ray.scripts.scripts"]
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from toolwright.cli import main; sys.exit(main())"


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def environment() -> dict[str, str]:
    left = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RAY_ADDRESS")}
    return {**left, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


@pytest.fixture
def jobs() -> Iterator[str]:
    """The address of a cluster's job server; the cluster ends with the process that holds it."""
    port, dashboard, agent = free_ports(3)
    line = [*RAY, "start", "--head", "--block", f"--port={port}", "--num-cpus=2", "--include-dashboard=true"]
    line += ["--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", "--disable-usage-stats"]
    line += [f"--dashboard-agent-listen-port={agent}"]  # else one for all clusters of a machine
    process = subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    limit = time.monotonic() + 240
    try:
        while not listening(dashboard):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < limit, "the dashboard does not answer"
            time.sleep(0.5)
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        process.terminate()
        process.communicate(timeout=120)


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_run_is_submitted_as_a_job(jobs: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "reward.py").write_text("def score(solution_str):\n    return float(len(solution_str))\n")
    named = ["run.name=x", f"run.dir={tmp_path}", "reward.function=reward.py:score", "train.steps=2"]
    own = words(*PATIENT, *named)
    line = [*RAY, "job", "submit", f"--address={jobs}", f"--working-dir={folder}", "--"]
    done = subprocess.run(
        [*line, sys.executable, "-c", START, "train", *own],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded" in done.stdout
    assert f"Ray's dashboard {jobs}" in done.stdout
    assert [row["step"] for row in metrics(tmp_path / "x")] == [0, 1, 2]
