"""What is closed is closed whole: a tool that fails to end leaves no engine behind, a run nothing frozen."""

from __future__ import annotations

import asyncio
import gc
from contextlib import ExitStack
from pathlib import Path

import pytest

from toolwright.agents.rollout import Rollout
from toolwright.engines import Engine, Sampling
from toolwright.failures import InfrastructureFailure
from toolwright.runtime.local import LocalRoles
from toolwright.trainer.assembly import prepare
from toolwright.trainer.loop import TrainingLoop
from toolwright.trainer.members import RoleContext, RolloutRole

from .runs import configured, trained


class Stubborn(Rollout):
    async def close(self) -> None:
        raise RuntimeError("its tools would not go")


class Place(RoleContext):
    def rollout(self, stack: ExitStack) -> Rollout:
        """Beside it a server, which the stack ends."""
        self.served = True
        stack.callback(lambda: setattr(self, "served", False))
        return Stubborn(self.config.rollout, self.engine, self.model[1], tools={})


@pytest.fixture
def place() -> Place:
    return Place(prepare(configured("model.context=4096")).brief)


def endless(engine: Engine) -> asyncio.Task[object]:
    """Of an engine that is not closed nobody would hear."""
    return asyncio.ensure_future(engine.generate([1], Sampling(max_tokens=4000), attempt="a"))


def test_a_crew_in_one_process(place: Place) -> None:
    crew = LocalRoles(place)

    async def begun() -> asyncio.Task[object]:
        return endless(crew.engine)

    answer = crew.loop.run(begun())
    with pytest.raises(RuntimeError, match="would not go"):
        crew.close()
    with pytest.raises(InfrastructureFailure, match="engine was closed"):
        answer.result()
    assert not place.served


def test_a_rollout_worker(place: Place) -> None:
    async def ended() -> None:
        role = RolloutRole(place, colleagues=lambda name: None)  # type: ignore[arg-type,return-value]
        answer = endless(role.engine)
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="would not go"):
            await role.close()
        with pytest.raises(InfrastructureFailure, match="engine was closed"):
            await answer

    asyncio.run(ended())
    assert not place.served


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_run_is_built_of_is_collected_only_after_it(
    tmp_path: Path, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_out = []
    learn = TrainingLoop.learn

    def seen(*given: object) -> dict[str, float]:
        kept_out.append(gc.get_freeze_count())
        if fails:
            raise RuntimeError("a bug")
        return learn(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(TrainingLoop, "learn", seen)
    if fails:
        with pytest.raises(RuntimeError, match="a bug"):
            trained(tmp_path, "train.steps=1")
    else:
        trained(tmp_path, "train.steps=1")
    assert kept_out[0] > 10_000
    assert gc.get_freeze_count() == 0
