"""Environments behind a server of OpenEnv: a real server, and its own client."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.tasks import InvalidAction, load
from toolwright.tasks.environment_host import EnvironmentHost
from toolwright.trajectory import Task

pytest.importorskip("openenv", reason="needs the extra 'openenv'")
pytest.importorskip("fastapi", reason="the server of OpenEnv needs FastAPI")

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from .functions import attempted


class Guess(Action):
    number: int


class Hint(Observation):
    hint: str = ""


class Guessing(Environment):  # type: ignore[misc, type-arg]
    """A digit that follows from the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Hint:
        self.secret = (seed or 0) % 10
        return Hint(hint="Guess a digit.")

    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Hint:  # type: ignore[override]
        right = action.number == self.secret
        hint = "right" if right else "higher" if action.number < self.secret else "lower"
        return Hint(hint=hint, reward=float(right), done=right)

    @property
    def state(self) -> State:
        return State()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    app = create_fastapi_app(Guessing, Guess, Hint, max_concurrent_envs=8)
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    for _ in range(600):
        if running.started:
            break
        time.sleep(0.1)
    port = running.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    running.should_exit = True
    thread.join(10)


def test_an_episode_is_played_to_its_end(server: str) -> None:
    async def play() -> tuple[str, Any, Any]:
        settings = {"name": "openenv", "url": server, "seed": 17, "observation": "hint"}
        world = EnvironmentHost(settings, limit_s=30)
        first = await world.reset(Task("t", []))
        with pytest.raises(InvalidAction):
            await world.step("seven")
        with pytest.raises(InvalidAction):
            await world.step('{"digit": 7}')
        found = await world.step('{"number": 3}'), await world.step('{"number": 7}')
        await world.close()
        return first.text, *found

    first, low, right = asyncio.run(play())
    assert (first, low.text, low.reward, low.done) == ("Guess a digit.", "higher", 0.0, False)
    assert (right.reward, right.done, right.info) == (1.0, True, {"success": True})


def test_tasks_are_seeds_and_attempts_run_side_by_side(server: str) -> None:
    params = {"url": server, "action": "number", "observation": "hint"}
    tasks = load(schema.TaskConfig(name="openenv", params=params, train_size=4, held_out_size=2), seed=0)
    assert len({task.extra_info["environment"]["seed"] for task in (*tasks.train, *tasks.held_out)}) == 6
    made = attempted(tasks.train, lambda _: [str(digit) for digit in range(10)])
    assert [t.failure for t in made] == [None] * 4
    assert {t.reward for t in made} == {1.0}
    assert [t.turns - 1 for t in made] == [t.task.extra_info["environment"]["seed"] % 10 for t in made]


def test_a_server_that_is_not_there_is_a_failure() -> None:
    world = {"name": "openenv", "url": "http://127.0.0.1:9", "seed": 1}
    task = Task("t", [], extra_info={"environment": world})
    (trajectory,) = attempted([task], lambda _: ["1"])
    assert trajectory.failure is not None
    assert trajectory.reward is None
    with pytest.raises(UserError, match="url"):
        load(schema.TaskConfig(name="openenv", held_out_size=1), seed=0)
