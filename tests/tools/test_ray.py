"""Only configuration travels: a Ray worker, a fresh process elsewhere, builds its own tools."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from toolwright.tools.settings import settings_of

ROOT = Path(__file__).resolve().parents[2]
TREE = {"tools": {"weather": {"path": "my_tools.py:Weather", "unit": "fahrenheit"}, "calculator": {}}}


def work(settings: dict[str, Any]) -> dict[str, Any]:
    """What runs in the worker."""
    from toolwright.tools.call import Call
    from toolwright.tools.toolbox import Toolbox

    async def use() -> list[str]:
        box = Toolbox(settings)
        try:
            calls = [Call("weather", {"city": "Rome"}), Call("calculator", {"expression": "6*7"})]
            answers = await asyncio.gather(*(box.call(call, attempt="g/0") for call in calls))
            await box.end("g/0")
            return [answer.text for answer in answers]
        finally:
            await box.close()

    return {"pid": os.getpid(), "folder": os.getcwd(), "answers": asyncio.run(use())}


@pytest.mark.slow
def test_a_tool_that_cannot_be_sent_works_in_a_ray_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.chdir(Path(__file__).parent)
    settings = settings_of(TREE)
    pickle.dumps(settings)
    monkeypatch.chdir(tmp_path)
    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(
        "local",  # whatever cluster another has left a note of
        num_cpus=1,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        runtime_env=environment,
    )
    try:
        # By value: the worker knows neither this file nor its folder.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        told = ray.get(ray.remote(work).remote(settings), timeout=120)
    finally:
        ray.shutdown()
    assert told["pid"] != os.getpid()
    assert told["answers"] == ["Rome: 20 fahrenheit, for g/0", "42"]
