"""Keys of earlier versions and what they became: in the files of runs, and in messages to users."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

from toolwright.failures import UserError

# What to say in place of each.
NOW = {
    "algorithm.selection.resample_on_correct": "use algorithm.selection.oversample=2",
    "update.offload": "use update.optimizer_state=host in place of update.offload=true",
    "task.shuffle": "use task.order=shuffled or task.order=as_listed",
    "model.tied": "use model.config.tie_word_embeddings",
    "model.qk_norm": "use model.config.qk_norm",
    "search.strategy": "use search.select, the strategy's name",  # never a key, but the word for it
    "search.guided.racing": "remove it; best-arm identification shares the runs",
    "search.guided.exploration": "remove it; the guided search edits its best candidate",
    "search.guided.explore": "remove it; the knowledge gradient shares the runs",
    "search.guided.optimism": "remove it; the knowledge gradient chooses the edits",
}
# Of the guided search for workflows: a tree search with racing, finals; and of the policy that proposed.
_GUIDED = (
    *("exploration", "widening", "widening_power", "growth", "z", "racing"),
    *("finals", "prior", "value", "experience", "explore", "optimism", "patience", "tolerance"),
)
# Of a fresh decoder: what `model.config` says now.
_FRESH = {"tied": "tie_word_embeddings", "qk_norm": "qk_norm"}
_POLICY = ("path", "warm", "served", "samples", "every", "shared", "train")


def translated(tree: dict[str, Any], path: Path) -> dict[str, Any]:
    """The configuration in the file `path` in the keys of today. The tree that is given stays as it is."""
    tree = deepcopy(tree)
    selection = _block(tree, "algorithm", "selection")
    if "resample_on_correct" in selection:
        resampled = selection.pop("resample_on_correct")
        selection["oversample"] = selection.get("oversample", 2) if resampled else 1
    update = _block(tree, "update")
    if update.pop("offload", False):
        update["optimizer_state"] = "host"
    task = _block(tree, "task")
    shuffled = task.pop("shuffle", None)
    if shuffled is not None or task.get("order") == "epochs":
        by_epochs = task.get("order", "epochs") == "epochs"
        task["order"] = task["order"] if not by_epochs else "as_listed" if shuffled is False else "shuffled"
    model = _block(tree, "model")
    fresh = {new: model.pop(old) for old, new in _FRESH.items() if old in model}
    if fresh:
        model["config"] = {**({} if model.get("path") else fresh), **(model.get("config") or {})}
    for key in _GUIDED:
        _block(tree, "search", "guided").pop(key, None)
    proposer = _block(tree, "proposer")
    for key in _POLICY:
        proposer.pop(key, None)
    if proposer.get("name") == "policy":
        proposer["name"] = "uniform"
    return _with_one_tools_file(tree, path)


def _block(tree: Any, *names: str) -> dict[str, Any]:
    """The block of this name, or an empty one if the tree has none."""
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) else {}


def _with_one_tools_file(tree: dict[str, Any], path: Path) -> dict[str, Any]:
    """In version 0.1, `rollout.tool_config_path` was a second name of `tool_config_path`."""
    if "tool_config_path" not in _block(tree, "rollout"):
        return tree
    file, other = tree["rollout"].pop("tool_config_path"), tree.get("tool_config_path")
    if file and other and file != other:
        raise UserError(
            f"{path}: rollout.tool_config_path no longer exists; put its tools and those of {other}, the "
            "tool_config_path, into one file"
        )
    return {**tree, "tool_config_path": other or file}
