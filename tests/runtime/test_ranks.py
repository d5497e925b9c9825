"""What learns over ranks of a cluster: the numbers of one process, and checkpoints for any number of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import string
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file

from tests.trainer.runs import as_lists, metrics, rollouts, token_values
from toolwright.failures import UserError
from toolwright.learner import checkpoints
from toolwright.models import huggingface
from toolwright.models.tokenizer import Tokenizer
from toolwright.trainer.loop import TrainingLoop, train

from .clusters import HERE, PATIENT, comparable, configured, walked

pytestmark = pytest.mark.xdist_group("ray runs")

STEPS = 5
OWN = [
    f"train.steps={STEPS}",
    f"rollout.agent={HERE}/echoes.py:Uneven",
    "rollout.max_turns=10",
    f"reward.function={HERE}/echoes.py:varied",
    "update.micro_tokens=60",
    "checkpoint.every=1",
    "checkpoint.keep=9",
    "eval.every=3",
]
PPO = ["algorithm=ppo", "algorithm.kl.where=reward", "update.minibatches=2", *OWN]
GRPO = ["algorithm=grpo", "algorithm.kl.where=loss", *OWN]


def ranks(count: int) -> list[str]:
    return [*PATIENT, f"runtime.placement.policy.ranks={count}"]


def run(folder: Path, name: str, *own: str) -> Path:
    return train(configured(f"run.dir={folder}", f"run.name={name}", *own), command=["toolwright"])


def resumed(run_of: Path, step: int, name: str, *own: str) -> Path:
    """A copy of the run as it stood when the checkpoint of this step was its last, gone on with."""
    copy = run_of.with_name(name)
    shutil.copytree(run_of, copy)
    for path in (copy / "checkpoints").iterdir():
        if checkpoints.step_of(path) > step:
            shutil.rmtree(path)
    return run(run_of.parent, name, "run.resume=true", *own)


def assert_same(found: Path, wanted: Path) -> None:
    for theirs, mine in zip(comparable(metrics(found)), comparable(metrics(wanted)), strict=True):
        assert theirs.keys() == mine.keys()
        for key, value in mine.items():
            assert theirs[key] == pytest.approx(value, abs=1e-5, rel=1e-5), (mine["step"], key)
    for step, values in token_values(wanted).items():
        for theirs, mine in zip(token_values(found)[step], values, strict=True):
            for there, here in zip(as_lists(theirs), as_lists(mine), strict=True):
                assert there == pytest.approx(here, abs=1e-4), step


@contextmanager
def killing(name: str, *, step: int) -> Iterator[list[str]]:
    """kill -9 of an actor while this step is learned, which it cannot finish before; who it was."""
    learn, killed = TrainingLoop.learn, []

    def dying(trainer: TrainingLoop, sampled: Any, now: int) -> dict[str, float]:
        if now == step and not killed:
            slot = trainer.roles.pool.slots[name]  # type: ignore[attr-defined]
            killed.append(slot.described)
            os.kill(slot.identity.pid, signal.SIGSTOP)
            threading.Timer(0.3, os.kill, (slot.identity.pid, signal.SIGKILL)).start()
        return learn(trainer, sampled, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingLoop, "learn", dying)
        yield killed


def assert_told(found: Path, killed: list[str], *, back_to: str) -> None:
    """`back_to`: to which step; ranks may not have written that of the step before when one of them dies."""
    noted = [json.loads(line) for line in (found / "incidents.jsonl").read_text().splitlines()]
    assert [row["who"] for row in noted if row["died"]] == killed
    assert killed[0] in (found / "report.html").read_text()
    assert sum(row["runtime/deaths"] for row in metrics(found)[1:]) == 1
    log = (found / "log.txt").read_text()
    assert re.search(f"the run goes back to the checkpoint of step {back_to}$", log, re.MULTILINE)


@pytest.mark.slow  # without a cluster, learner/test_sharded.py has losses and checkpoints of ranks
class TestPPO:
    @pytest.fixture(scope="class")
    def here(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return run(tmp_path_factory.mktemp("ppo"), "here", *PPO)

    @pytest.fixture(scope="class")
    def there(self, here: Path, cluster: Any) -> Path:
        with walked():
            return run(here.parent, "there", *ranks(2), *PPO)

    def test_losses_of_two_ranks_are_those_of_one_process(self, here: Path, there: Path) -> None:
        steps = rollouts(here)
        assert all(len({t.sampled_tokens for t in attempts}) > 1 for attempts in steps.values())
        assert all(row["policy/grad_norm"] > 1e-3 for row in metrics(here)[1:])
        assert_same(there, here)

    def test_every_checkpoint_is_torchs_distributed_one(self, there: Path) -> None:
        found = sorted((there / "checkpoints").iterdir())
        assert [path.name for path in found] == [f"step_{step}" for step in range(1, STEPS + 1)]
        assert all((path / checkpoints.SHARDS / ".metadata").is_file() for path in found)

    def test_it_goes_on_over_three_ranks(self, here: Path, there: Path) -> None:
        assert_same(resumed(there, 3, "three", *ranks(3), *PPO), here)

    def test_it_goes_on_over_one_though_the_critic_dies(self, here: Path, there: Path) -> None:
        with killing("critic", step=5) as killed:
            found = resumed(there, 3, "one", *ranks(1), *PPO)
        assert_same(found, here)
        assert_told(found, killed, back_to="4")

    def test_it_goes_on_in_one_process(self, here: Path, there: Path) -> None:
        assert_same(resumed(there, 3, "alone", "runtime.name=local", *PPO), here)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in one process that the runs over ranks are compared with."""
    return run(tmp_path_factory.mktemp("grpo"), "alone", *GRPO)


@pytest.mark.slow
def test_a_run_of_one_process_goes_on_over_two_ranks(cluster: Any, alone: Path) -> None:
    """And through the death of one of them in mid-step: from the last checkpoint, which they wrote."""
    with walked(), killing("policy-1", step=4) as killed:
        found = resumed(alone, 1, "over_two", *ranks(2), *GRPO)
    assert_same(found, alone)
    assert_told(found, killed, back_to="[23]")


@pytest.mark.slow
def test_a_teacher_is_sharded_with_the_policy_that_it_grades(cluster: Any, tmp_path: Path) -> None:
    for seed, name in enumerate(("student", "teacher")):
        tokenizer = Tokenizer.characters(string.printable)
        huggingface.save(tiny.decoder(seed, vocab=tokenizer.size, context=32), tmp_path / name)
        tokenizer.save(tmp_path / name)
    models = [f"model.path={tmp_path}/student", f"algorithm.params.distill.teacher={tmp_path}/teacher"]
    own = ["algorithm=distill", *models, *OWN]
    here = run(tmp_path, "here", *own)
    assert_same(run(tmp_path, "there", *ranks(2), *own), here)
    assert all(row["teacher/kl"] > 0.1 for row in metrics(here)[1:])


LAYOUTS = {"sequence": "{sequence: 2}", "tensor": "{tensor: 2}", "both": "{data: 2, sequence: 2}"}


@pytest.mark.slow  # without a cluster, learner/test_parallel.py has the same and more
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_may_divide_tokens_and_matrices(cluster: Any, tmp_path: Path, alone: Path, layout: str) -> None:
    """And a run of one process goes on from what they saved."""
    own = [*PATIENT, f"runtime.placement.policy.ranks={LAYOUTS[layout]}"]
    there = run(tmp_path, "there", *own, *GRPO)
    assert_same(there, alone)
    assert "ranks, which divide" in (there / "log.txt").read_text()
    assert_same(resumed(there, 3, "goes_on", "runtime.name=local", *GRPO), alone)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["2", "{data: 2, tensor: 2}"])
def test_an_adapter_is_learned_over_ranks(cluster: Any, tmp_path: Path, layout: str) -> None:
    tokenizer = Tokenizer.characters(string.printable)
    huggingface.save(tiny.decoder(vocab=tokenizer.size, context=32), tmp_path / "base")
    tokenizer.save(tmp_path / "base")
    own = [f"model.path={tmp_path}/base", "model.lora.rank=4", *GRPO]
    here = run(tmp_path, "here", *own)
    there = run(tmp_path, "there", *PATIENT, f"runtime.placement.policy.ranks={layout}", *own)
    assert_same(there, here)
    found, wanted = (load_file(path / "model" / "adapter_model.safetensors") for path in (there, here))
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], wanted[name], atol=1e-5) for name in wanted)


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ("{tensor: 3}", r"ranks\.tensor=3 does not divide the model's heads"),
        ("{sequence: 2, tensor: 2}", r"ranks\.sequence=2 does not go with heads=1"),
    ],
)
def test_a_layout_that_does_not_go_with_the_model_is_refused_before_anything_starts(
    tmp_path: Path, layout: str, reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        run(tmp_path, "never", *PATIENT, f"runtime.placement.policy.ranks={layout}", *GRPO)


def test_an_engine_cannot_stand_on_sharded_weights() -> None:
    with pytest.raises(UserError, match="cannot use sharded weights"):
        configured(*ranks(2), "runtime.placement.colocate=yes")
