"""The main settings of a run in a few words, as the report and the page show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def main_settings(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The main settings of a run; missing ones are left out."""

    def add(label: str, template: str, *paths: str) -> None:
        values = [setting(config, path) for path in paths]
        if all(value is not None for value in values):
            found.append((label, template.format(*values)))

    found: list[tuple[str, str]] = []
    add("algorithm", "{} ({}, {})", "algorithm.name", "algorithm.adv_estimator", "algorithm.loss")
    add("task", "{}", "task.name")
    if model_name(config):
        found.append(("model", model_name(config)))
    add("engine", "{}", "engine.name")
    agent = "rollout.agent"
    if isinstance(program := setting(config, agent), Mapping):  # of the user's own
        agent = next((f"{agent}.{key}" for key in ("command", "function", "url") if program.get(key)), agent)
    add("agent", "{}, {} tokens a turn", agent, "rollout.max_tokens")
    add("attempts a step", "{} × {} (prompts × samples)", "rollout.prompts", "rollout.samples")
    add("updates a step", "{} × {} (epochs × minibatches)", "update.epochs", "update.minibatches")
    add("learning rate", "{}", "update.policy.lr")
    if setting(config, "algorithm.kl.where") not in (None, "none"):
        add("KL", "{} in the {}, {}", "algorithm.kl.coef", "algorithm.kl.where", "algorithm.kl.estimator")
    add("temperature", "{}", "rollout.temperature")
    add("seed", "{}", "run.seed")
    return found


def model_name(config: Mapping[str, Any]) -> str:
    if path := setting(config, "model.path"):
        return str(path)
    layers, width = setting(config, "model.layers"), setting(config, "model.width")
    return f"new decoder, {layers} layers of {width}" if layers and width else ""


def setting(config: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted key; None if there is none."""
    from toolwright.config.keys import (
        value_at,  # here: a report need not wait for the configuration's modules
    )

    return value_at(config, path)
