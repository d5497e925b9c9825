"""Keys of earlier versions: what they became, in the files of runs and in messages to whoever says them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolwright.failures import UserError

# What to say in place of each.
NOW = {
    "algorithm.selection.resample_on_correct": "algorithm.selection.oversample=2 alone turns it on now",
    "update.offload": "update.optimizer_state=host is what update.offload=true was",
    "task.shuffle": "it is task.order now: shuffled or as_listed",
    "model.tied": "it is model.config.tie_word_embeddings now",
    "model.qk_norm": "it is model.config.qk_norm now",
    "search.guided.racing": "best-arm identification shares the runs now",
    "search.guided.exploration": "the guided search edits its best now",
    "search.guided.explore": "the knowledge gradient shares the runs now",
    "search.guided.optimism": "the knowledge gradient chooses the edits now",
}
# Of the guided search for workflows: a tree search with racing, finals; and of the policy that proposed.
_GUIDED = (
    *("exploration", "widening", "widening_power", "growth", "z", "racing"),
    *("finals", "prior", "value", "experience", "explore", "optimism"),
)
_POLICY = ("path", "warm", "served", "samples", "every", "shared", "train")


def translated(tree: dict[str, Any], path: Path) -> dict[str, Any]:
    """The configuration in the file `path` in the keys of today. The tree that is given stays as it is."""
    now = _fresh_model(_ordered(_optimizer_state(_oversampled(tree))))
    return _one_tools_file(_guided_search(now), path)


def _oversampled(tree: dict[str, Any]) -> dict[str, Any]:
    algorithm = tree.get("algorithm")
    selection = algorithm.get("selection") if isinstance(algorithm, dict) else None
    if not isinstance(selection, dict) or "resample_on_correct" not in selection:
        return tree
    kept = {
        "oversample": 2,
        **{key: value for key, value in selection.items() if key != "resample_on_correct"},
    }
    if not selection["resample_on_correct"]:
        kept["oversample"] = 1
    return {**tree, "algorithm": {**tree["algorithm"], "selection": kept}}


def _optimizer_state(tree: dict[str, Any]) -> dict[str, Any]:
    """Until version 0.2, `update.offload` was a key of its own."""
    update = tree.get("update")
    if not isinstance(update, dict) or "offload" not in update:
        return tree
    kept = {key: value for key, value in update.items() if key != "offload"}
    if update["offload"]:
        kept["optimizer_state"] = "host"
    return {**tree, "update": kept}


def _ordered(tree: dict[str, Any]) -> dict[str, Any]:
    """`task.shuffle` was a key beside `task.order`, whose default was called `epochs`."""
    task = tree.get("task")
    if not isinstance(task, dict) or ("shuffle" not in task and task.get("order") != "epochs"):
        return tree
    order = task.get("order", "epochs")
    if order == "epochs":
        order = "shuffled" if task.get("shuffle", True) else "as_listed"
    kept = {key: value for key, value in task.items() if key != "shuffle"}
    return {**tree, "task": {**kept, "order": order}}


def _fresh_model(tree: dict[str, Any]) -> dict[str, Any]:
    """`model.tied` and `model.qk_norm` said what `model.config` says of a fresh decoder."""
    model = tree.get("model")
    if not isinstance(model, dict) or not {"tied", "qk_norm"} & set(model):
        return tree
    names = {"tied": "tie_word_embeddings", "qk_norm": "qk_norm"}
    said = {} if model.get("path") else {new: model[old] for old, new in names.items() if old in model}
    kept = {key: value for key, value in model.items() if key not in names}
    return {**tree, "model": {**kept, "config": {**said, **(model.get("config") or {})}}}


def _guided_search(tree: dict[str, Any]) -> dict[str, Any]:
    """Keys of searches that are gone say nothing to the search of today."""
    search, proposer = tree.get("search"), tree.get("proposer")
    guided = search.get("guided") if isinstance(search, dict) else None
    if isinstance(guided, dict):
        kept = {key: value for key, value in guided.items() if key not in _GUIDED}
        tree = {**tree, "search": {**tree["search"], "guided": kept}}
    if isinstance(proposer, dict):
        kept = {key: value for key, value in proposer.items() if key not in _POLICY}
        kept = {**kept, "name": "uniform"} if kept.get("name") == "policy" else kept
        tree = {**tree, "proposer": kept}
    return tree


def _one_tools_file(tree: dict[str, Any], path: Path) -> dict[str, Any]:
    """In version 0.1, `rollout.tool_config_path` was a second name of `tool_config_path`."""
    rollout = tree.get("rollout")
    if not isinstance(rollout, dict) or "tool_config_path" not in rollout:
        return tree
    file, other = rollout["tool_config_path"], tree.get("tool_config_path")
    if file and other and file != other:
        raise UserError(
            f"{path}: rollout.tool_config_path is gone; join its tools with those of {other}, the "
            "tool_config_path, in one file"
        )
    rollout = {key: value for key, value in rollout.items() if key != "tool_config_path"}
    return {**tree, "rollout": rollout, "tool_config_path": other or file}
