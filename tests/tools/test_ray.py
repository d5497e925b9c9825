"""Only configuration travels: a Ray worker, a fresh process elsewhere, builds its own tools."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from toolwright.tools.settings import settings_of

ROOT = Path(__file__).resolve().parents[2]
TREE = {"tools": {"weather": {"path": "my_tools.py:Weather", "unit": "fahrenheit"}, "calculator": {}}}


def work(settings: dict[str, Any]) -> dict[str, Any]:
    """What runs in the worker."""
    from toolwright.tools.call import ToolRequest
    from toolwright.tools.toolbox import Toolbox

    async def use() -> list[str]:
        box = Toolbox(settings)
        try:
            calls = [
                ToolRequest("weather", {"city": "Rome"}),
                ToolRequest("calculator", {"expression": "6*7"}),
            ]
            answers = await asyncio.gather(*(box.call(call, attempt="g/0") for call in calls))
            await box.end("g/0")
            return [answer.text for answer in answers]
        finally:
            await box.close()

    return {"pid": os.getpid(), "folder": os.getcwd(), "answers": asyncio.run(use())}


def in_a_cluster(settings: dict[str, Any]) -> dict[str, Any]:
    import ray

    ray.init(
        "local",  # whatever cluster another has left a note of
        num_cpus=1,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    try:
        # By value: the worker knows neither this file nor its folder.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        return {"driver": os.getpid(), **ray.get(ray.remote(work).remote(settings), timeout=400)}
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_a_tool_that_cannot_be_sent_works_in_a_ray_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.chdir(Path(__file__).parent)
    settings = settings_of(TREE)
    pickle.dumps(settings)
    monkeypatch.chdir(tmp_path)
    # From a process of its own: this one may be of a cluster already, by another's test.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as driver:
        told = driver.submit(in_a_cluster, settings).result()
    assert told["pid"] != told["driver"]
    assert told["answers"] == ["Rome: 20 fahrenheit, for g/0", "42"]
