"""PRIME: a reward model learns beside the policy, from outcomes alone, and says what each token earned."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import tiny
import torch
import torch.nn.functional as F

from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.learner.implicit_reward import ImplicitReward
from toolwright.trajectory import Segment, Task, Trajectory

from .runs import metrics, trained

WEIGHTS = "model/model.safetensors"


def batch() -> Batch:
    made = []
    for number, answer in enumerate(([7, 8, 9], [10], [8, 8])):
        one = Trajectory(Task("t", []), "g", index=number)
        one.append(Segment("prompt", [4, 5 + number]))
        one.append(Segment("policy", answer, [-1.0] * len(answer)))
        made.append(one)
    packed = Batch.pack(made)
    packed.columns["label"] = torch.tensor([1.0, 0.0, 1.0]).repeat_interleave(torch.tensor([3, 1, 2]))
    return packed


@pytest.mark.parametrize("micro_tokens", [1, 1000])
def test_the_loss_is_cross_entropy_of_the_outcomes_however_it_is_split(micro_tokens: int) -> None:
    decoder = tiny.decoder()
    model = ImplicitReward(
        copy.deepcopy(decoder),
        schema.OptimizerConfig(lr=1e-2),
        beta=0.5,
        total_updates=20,
        micro_tokens=micro_tokens,
        dtype=torch.float32,
    )
    packed = batch()
    assert not model.values(packed).any()  # it begins as its own reference
    assert model.update(packed)["loss"] == pytest.approx(torch.log(torch.tensor(2.0)).item(), abs=1e-5)
    ratio = model.values(packed).double()
    sums = torch.stack([part.sum() for part in ratio.split(packed.action_lengths)])
    expected = F.binary_cross_entropy_with_logits(0.5 * sums, torch.tensor([1.0, 0.0, 1.0]).double())
    assert model.update(packed)["loss"] == pytest.approx(expected.item(), rel=1e-4)
    for _ in range(15):
        found = model.update(packed)
    assert found["accuracy"] == pytest.approx(1.0)
    restored = ImplicitReward(
        tiny.decoder(3),
        schema.OptimizerConfig(lr=1e-2),
        beta=0.5,
        total_updates=20,
        micro_tokens=micro_tokens,
        dtype=torch.float32,
    )
    restored.load_state_dict(model.state_dict())
    assert torch.equal(restored.values(packed), model.values(packed))


def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    own = ["algorithm=prime", "train.steps=4", "checkpoint.every=2", "checkpoint.keep=9"]
    whole = trained(tmp_path, "run.name=whole", *own)
    assert {"process_reward/loss", "process_reward/accuracy"} <= metrics(whole)[-1].keys()
    broken = trained(tmp_path, "run.name=broken", *own)
    (broken / "checkpoints/step_4").rename(tmp_path / "gone")
    (broken / WEIGHTS).unlink()
    trained(tmp_path, "run.name=broken", "run.resume=true", *own)
    assert (broken / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()


@pytest.mark.slow
def test_prime_learns(tmp_path: Path) -> None:
    own = ["algorithm=prime", "train.steps=150", "rollout.prompts=16", "rollout.samples=8", "eval.every=0"]
    rows = metrics(trained(tmp_path, *own))[1:]
    first, last = (sum(row["reward/mean"] for row in part) / 10 for part in (rows[:10], rows[-10:]))
    assert last > first + 0.3
    assert rows[-1]["process_reward/accuracy"] > 0.6
