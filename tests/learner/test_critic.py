"""The critic begins by expecting nothing, and comes to expect what is returned."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch

from toolwright.config import schema
from toolwright.learner.critic import Critic

pytestmark = pytest.mark.filterwarnings("ignore:this machine reports AMX")


def critic_of(*, lr: float = 0.01, clip: float = 10.0, **settings: Any) -> Critic:
    return Critic(
        tiny.decoder(**settings.pop("shape", {})),
        schema.OptimizerConfig(lr=lr),
        total_updates=100,
        micro_tokens=150,
        clip=clip,
        **{"dtype": torch.float32, **settings},
    )


@pytest.mark.parametrize("tied", [True, False])
def test_values_start_at_zero(tied: bool) -> None:
    values = critic_of(shape={"tied": tied}).values(tiny.batch(5))
    assert values.shape == (len(tiny.batch(5).actions),)
    assert not values.any()
    assert not values.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_come_to_fit_the_returns(dtype: torch.dtype) -> None:
    critic, batch = critic_of(dtype=dtype), tiny.batch(5)
    # Something that can be read off the tokens before the action.
    batch.columns["returns"] = (batch.tokens[batch.actions - 1] % 3).float() - 1
    losses = []
    for _ in range(40):
        batch.columns["values"] = critic.values(batch)
        losses.append(critic.update(batch)["loss"])
    assert losses[-1] < losses[0] / 10
    error = critic.values(batch) - batch.columns["returns"]
    assert float(error.square().mean()) < 0.1


def test_learning_values_leaves_the_policy_as_it_is() -> None:
    policy = tiny.decoder()
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    critic = Critic(
        policy, schema.OptimizerConfig(), total_updates=1, micro_tokens=1000, clip=0.2, dtype=torch.float32
    )
    critic.update(tiny.batch(4))
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_a_critic_that_is_loaded_goes_on_bit_for_bit() -> None:
    straight, first, second = critic_of(), critic_of(), critic_of(lr=0.01)
    for seed in range(4):
        straight.update(tiny.batch(4, seed=seed))
    for seed in range(2):
        first.update(tiny.batch(4, seed=seed))
    second.load_state_dict(first.state_dict())
    for seed in range(2, 4):
        second.update(tiny.batch(4, seed=seed))
    pairs = zip(straight.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_the_clip_is_counted() -> None:
    critic, batch = critic_of(clip=0.01), tiny.batch(4)
    batch.columns["values"] = torch.full_like(batch.columns["values"], 5.0)  # far from what it says now
    batch.columns["returns"] = torch.zeros_like(batch.columns["returns"])
    assert critic.update(batch)["clip_fraction"] == 1.0
