"""PRIME's process reward model as a role: which runs need it, and how it is built."""

from __future__ import annotations

import copy
from typing import Any

from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.learner.implicit_reward import ImplicitReward
from toolwright.models.decoder import Decoder
from toolwright.models.tokenizer import Tokenizer
from toolwright.trainer import building
from toolwright.trainer.building import needs_role

# Of the estimator's settings: what only its reward model reads.
OWN = ("path",)


def process_reward_model(config: schema.Config) -> schema.Model | None:
    """Return the configuration of the reward model, with lengths and precision of the policy. None means that
    it starts as a copy of the policy."""
    path = _settings(config).get("path")
    model = config.model
    if path is None:
        return None
    return schema.Model(path=str(path), context=model.context, dtype=model.dtype, device=model.device)


def build_process_reward(config: schema.Config, policy: Decoder) -> ImplicitReward:
    """Build the reward model. `policy` is the policy before the first step."""
    own = process_reward_model(config)
    if own is None:
        decoder = copy.deepcopy(policy)
    else:
        decoder, _ = building.build_model(own, "", seed=config.run.seed)
    return ImplicitReward(
        decoder,
        config.update.critic,
        beta=float(_settings(config).get("beta", 0.05)),
        total_updates=config.train.steps,
        **building.pass_settings(config),
    )


def check_process_reward(config: schema.Config, tokenizer: Tokenizer) -> None:
    """Raise a UserError if the reward model has another tokenizer than the policy, or if several ranks would
    share it."""
    if not needs_role(config.algorithm, "process_reward"):
        return
    if config.runtime.placement.policy.layout.size > 1:
        raise UserError(
            f"algorithm.adv_estimator={config.algorithm.adv_estimator} learns a reward model in one process: "
            "leave runtime.placement.policy.ranks at 1"
        )
    model = process_reward_model(config)
    if building.adapts(config.model) and model is None:
        raise UserError(
            f"algorithm.params.{config.algorithm.adv_estimator}.path: with an adapter the reward model "
            "cannot start from the policy; name the folder that it starts from"
        )
    if model is not None:
        own, theirs = (t.backend.get_vocab() for t in (tokenizer, building.build_tokenizer(model, "")))
        if own != theirs:
            raise UserError(
                f"algorithm.params.{config.algorithm.adv_estimator}.path={model.path} has another tokenizer "
                "than the policy, whose own tokens it grades"
            )


def _settings(config: schema.Config) -> dict[str, Any]:
    found: dict[str, Any] = config.algorithm.params.get(config.algorithm.adv_estimator, {})
    return found
