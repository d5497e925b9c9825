"""Keys of earlier versions: what they became, in the files of runs and in messages to whoever says them."""

from __future__ import annotations

from typing import Any

# What to say in place of each.
NOW = {
    "algorithm.selection.resample_on_correct": "algorithm.selection.oversample=2 alone turns it on now",
}


def translated(tree: dict[str, Any]) -> dict[str, Any]:
    """A run's configuration in the keys of today. The tree that is given stays as it is."""
    selection = (
        tree.get("algorithm", {}).get("selection") if isinstance(tree.get("algorithm"), dict) else None
    )
    if not isinstance(selection, dict) or "resample_on_correct" not in selection:
        return tree
    kept = {key: value for key, value in selection.items() if key != "resample_on_correct"}
    if not selection["resample_on_correct"]:
        kept["oversample"] = 1
    elif "oversample" not in kept:
        kept["oversample"] = 2
    return {**tree, "algorithm": {**tree["algorithm"], "selection": kept}}
