"""The sharded learner on a CUDA device, over NCCL: the same promises with one rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import torch.distributed as dist

from tests.ports import free_port
from toolwright.config import schema
from toolwright.learner import sharded_checkpoints
from toolwright.learner.ranks import ALONE
from toolwright.learner.sharded_checkpoints import Saver
from toolwright.learner.sharding import RankGroup
from toolwright.models.parallel import SequenceGroup
from toolwright.models.tensor_group import TensorGroup
from toolwright.trainer.learning import Learner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
DEVICE = torch.device("cuda", 0)


@pytest.fixture(params=[False, True], ids=["", "offload"])
def group(request: pytest.FixtureRequest) -> Iterator[RankGroup]:
    made = RankGroup.join(
        rank=0, size=1, address="127.0.0.1", port=free_port(), device=DEVICE, offload=request.param
    )
    yield made
    made.leave()


def learner_of(ranks: Any, dtype: str) -> Learner:
    config = schema.Config.model_validate(
        {
            "algorithm": {"adv_estimator": "gae", "kl": {"where": "reward"}},
            "update": {
                "minibatches": 2,
                "micro_tokens": 100,
                "policy": {"lr": 1e-4},
                "critic": {"lr": 3e-3},
            },
            "rollout": {"max_tokens": 32},
            "model": {"dtype": dtype},
        }
    )
    decoder = tiny.decoder(kv_heads=2, qk_norm=True, family="qwen3").recomputing(True)
    return Learner(config, decoder if ranks is not ALONE else decoder.to(DEVICE), max_turns=3, ranks=ranks)


def learn(learner: Learner, steps: range) -> list[dict[str, float]]:
    found = []
    for step in steps:
        made = tiny.conversations(8, seed=step)
        for number, trajectory in enumerate(made):
            trajectory.reward = number / 8
        found.append(learner.learn(made, step, exact=False, baselines={})[0])
    return found


@pytest.mark.parametrize(("dtype", "near"), [("float32", 1e-3), ("bfloat16", 0.1)])
def test_losses_are_those_of_a_process_without_ranks(group: RankGroup, dtype: str, near: float) -> None:
    sharded, alone = (learn(learner_of(ranks, dtype), range(1, 4)) for ranks in (group, ALONE))
    for found, wanted in zip(sharded, alone, strict=True):
        for name in ("policy/loss", "critic/loss", "policy/entropy"):
            assert found[name] == pytest.approx(wanted[name], abs=near, rel=near), name


def test_a_checkpoint_goes_on(group: RankGroup, tmp_path: Path) -> None:
    first, second, saver = learner_of(group, "float32"), learner_of(group, "float32"), Saver(group)
    learn(first, range(2))
    plain, tensors = first.state()
    saver.save(tmp_path, 2, plain, tensors, keep=1)
    wanted = learn(first, range(2, 4))
    saver.close()
    sharded_checkpoints.restore(tmp_path / "step_2", second, group)
    for found, row in zip(learn(second, range(2, 4)), wanted, strict=True):
        assert found == pytest.approx(row, abs=1e-3, rel=1e-3)
    assert all(tensor.device.type == "cpu" for tensor in first.policy.weights().values())


@pytest.mark.parametrize("divided", ["sequence", "tensor", "both"])
@pytest.mark.parametrize(("dtype", "near"), [("float32", 1e-3), ("bfloat16", 0.1)])
def test_what_divides_passes_and_matrices_runs_over_nccl(
    group: RankGroup, divided: str, dtype: str, near: float
) -> None:
    """Among one rank: every exchange and sum is made, and changes nothing."""
    whole = dist.group.WORLD
    assert whole is not None
    if divided != "tensor":
        group.sequence = SequenceGroup(whole)
    if divided != "sequence":
        group.tensor = TensorGroup(whole)
    found, alone = (learn(learner_of(ranks, dtype), range(1, 4)) for ranks in (group, ALONE))
    for one, other in zip(found, alone, strict=True):
        for name in ("policy/loss", "critic/loss", "policy/entropy", "policy/grad_norm"):
            assert one[name] == pytest.approx(other[name], abs=near, rel=near), name
