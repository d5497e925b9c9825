"""The learning rate of each update, as a whole run has it."""

from __future__ import annotations

from .conftest import Build


def test_the_policys_schedule_counts_its_own_updates(build: Build) -> None:
    """Warm-up and decay begin when the policy does, and decay ends with the run."""
    trainer = build(
        "algorithm=ppo",
        "update.minibatches=1",
        "update.epochs=1",
        "update.critic_warmup=2",
        "update.policy.lr=1",
        "update.policy.warmup_steps=2",
        "update.policy.decay=linear",
        "update.critic.lr=1",
        "update.critic.decay=linear",
        "train.steps=8",
    )
    figures = [trainer.learn(trainer.sample(step), step) for step in range(1, 9)]
    assert [row.get("policy/lr") for row in figures] == [None, None, 0.5, 1, 1, 0.75, 0.5, 0.25]
    assert [row["critic/lr"] for row in figures] == [1 - n / 8 for n in range(8)]
