"""The readable GRPO gives the trainer's losses, from the same weights and the same trajectories."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from statistics import fmean
from types import ModuleType

import pytest
import torch

from toolwright.config import schema
from toolwright.models import huggingface
from toolwright.trainer.loop import TrainingLoop
from toolwright.trajectory import Trajectory

EXAMPLE = Path(__file__).parents[2] / "examples" / "01_grpo_in_one_file.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("grpo_in_one_file", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["grpo_in_one_file"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def attempts_of(example: ModuleType, trajectories: list[Trajectory]) -> object:
    """What the trainer sampled, in the example's padded form."""
    width = max(len(t.tokens) for t in trajectories)
    tokens = torch.zeros(len(trajectories), width, dtype=torch.int64)
    actions = torch.zeros(len(trajectories), width, dtype=torch.bool)
    old = torch.zeros(len(trajectories), width)
    for row, trajectory in enumerate(trajectories):
        size = len(trajectory.tokens)
        tokens[row, :size] = torch.tensor(trajectory.tokens)
        actions[row, :size] = torch.tensor(trajectory.mask)
        old[row, :size][torch.tensor(trajectory.mask)] = torch.tensor(
            [log_prob for step in trajectory.steps for log_prob in step.log_probs]
        )
    return example.Attempts(tokens, actions, old)


def test_the_readable_loop_gives_the_trainers_losses(example: ModuleType, tmp_path: Path) -> None:
    """Sixteen updates in a row, none of which is set right again in between.

    Several updates a step: at the first of them the ratio is 1 and the loss is 0 whatever the policy; from
    the second on it is not, and the clip works.
    """
    from transformers import AutoModelForCausalLM

    epochs, settings = 4, example.make_optimizer(torch.nn.Linear(1, 1)).param_groups[0]
    config = schema.Config(
        run=schema.RunConfig(threads=1),
        task=schema.TaskConfig(
            name="sort", params={"alphabet": "abc", "min_length": 2, "max_length": 3}, held_out_size=4
        ),
        model=schema.Model(layers=2, width=32, heads=2, kv_heads=2, ffn=64, context=32),
        rollout=schema.RolloutConfig(prompts=6, samples=8, max_tokens=4),
        algorithm=schema.Algorithm(aggregate="seq-mean-token-mean"),
        update=schema.Update(
            epochs=epochs,
            policy=schema.OptimizerConfig(lr=5 * settings["lr"], betas=settings["betas"]),
        ),
    )
    trainer = TrainingLoop(config)
    huggingface.save(trainer.learner.policy.decoder, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    # A random policy also says the padding token, whose embedding transformers would not train.
    model.get_input_embeddings().padding_idx = None
    optimizer = example.make_optimizer(model)
    optimizer.param_groups[0]["lr"] *= 5  # fast enough that ratios reach the clip
    clipped = []
    for step in range(1, 5):
        sampled = trainer.sample(step)
        # Any score that differs within groups will do, and random weights are seldom right.
        for trajectory in sampled.trajectories:
            trajectory.reward = float(len(set(trajectory.response)))
        group = [int(t.group.rsplit(".", 1)[1]) for t in sampled.trajectories]
        rewards = torch.tensor([t.reward for t in sampled.trajectories])
        attempts, advantage = attempts_of(example, sampled.trajectories), example.advantages(rewards, group)
        read = [example.update(model, optimizer, attempts, advantage) for _ in range(epochs)]
        ours = trainer.learn(sampled, step)
        losses, norms = zip(*read, strict=True)
        assert min(norms) > 0.01, "without a gradient there is nothing to compare"
        assert fmean(losses) < -1e-3
        assert fmean(losses) == pytest.approx(ours["policy/loss"], abs=1e-5)
        assert fmean(norms) == pytest.approx(ours["policy/grad_norm"], rel=1e-5)
        clipped.append(ours["policy/clip_fraction"])
    trainer.close()
    assert max(clipped) > 0


def test_the_example_learns(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example.STEPS = 90
    example.main()
    rewards = [float(line.split("reward")[1].split()[0]) for line in capsys.readouterr().out.splitlines()]
    assert rewards[0] < 0.2
    assert sum(rewards[-3:]) / 3 > 0.45
