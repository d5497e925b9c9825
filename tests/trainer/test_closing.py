"""What is closed is closed whole: a tool that fails to end leaves no engine behind, a run nothing frozen."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from toolwright.agents.rollout import Rollout
from toolwright.engines import Engine, Sampling
from toolwright.failures import InfrastructureFailure
from toolwright.runtime.roles import Roles
from toolwright.trainer.loop import TrainingLoop
from toolwright.trainer.preparation import prepare
from toolwright.trainer.roles import RoleContext, RolloutRole, build_roles, required_roles

from .runs import configured, trained


class Stubborn(Rollout):
    async def close(self) -> None:
        raise RuntimeError("its tools would not go")


class Context(RoleContext):
    def rollout(self, stack: ExitStack) -> Rollout:
        """Beside it a server, which the stack ends."""
        self.served = True
        stack.callback(lambda: setattr(self, "served", False))
        return Stubborn(self.config.rollout, self.engine, self.model[1], tools={})


@pytest.fixture
def context() -> Context:
    return Context(prepare(configured("model.context=4096")).role_config)


def endless(engine: Engine) -> asyncio.Task[object]:
    """Of an engine that is not closed nobody would hear."""
    return asyncio.ensure_future(engine.generate([1], Sampling(max_tokens=4000), attempt="a"))


def test_roles_in_one_process(context: Context) -> None:
    def build(built: dict[str, Any], names: Sequence[str], *_: object) -> None:
        build_roles(built, names, context, None)

    roles = Roles(build, context.role_config, required_roles(context.config))

    async def begun() -> asyncio.Task[object]:
        return endless(context.engine)

    answer = roles.loop.run(begun())
    with pytest.raises(RuntimeError, match="would not go"):
        roles.close()
    with pytest.raises(InfrastructureFailure, match="engine was closed"):
        answer.result()
    assert not context.served


def test_a_rollout_worker(context: Context) -> None:
    async def ended() -> None:
        role = RolloutRole(context)
        role.start()
        answer = endless(role.engine)
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="would not go"):
            await role.close()
        with pytest.raises(InfrastructureFailure, match="engine was closed"):
            await answer

    asyncio.run(ended())
    assert not context.served


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
@pytest.mark.parametrize("fails", [False, True])
def test_garbage_of_a_run_is_collected_only_after_it(
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


def test_objects_that_an_application_froze_stay_frozen(tmp_path: Path) -> None:
    gc.freeze()
    assert gc.get_freeze_count() > 10_000
    trained(tmp_path, "train.steps=1")
    assert gc.get_freeze_count() > 10_000
