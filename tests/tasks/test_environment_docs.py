"""The environment of docs/environments.md works as it is written there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from toolwright.config import schema
from toolwright.tasks import Observation, Outcome, load
from toolwright.tasks.environment_host import EnvironmentHost

PAGE = Path(__file__).parents[2] / "docs/environments.md"


def test_the_documented_environment_and_its_task_are_one_short_file(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= 60
    file = tmp_path / "guess.py"
    file.write_text(code, encoding="utf-8")
    tasks = load(schema.TaskConfig(name=f"{file}:guess"), seed=0)
    assert (len(tasks.train), len(tasks.held_out)) == (8, 2)

    async def play() -> tuple[Observation, Outcome]:
        host = EnvironmentHost(tasks.train[3].extra_info["environment"], limit_s=60)
        seen, outcome = await host.reset(tasks.train[3]), await host.step("3")
        await host.close()
        return seen, outcome

    seen, outcome = asyncio.run(play())
    assert seen.anchor == "start"
    assert (outcome.reward, outcome.done, outcome.info) == (1.0, True, {"success": True})
