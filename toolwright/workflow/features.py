"""The features of a workflow: what the value of a workflow is a function of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from toolwright.workflow.graph import refs_of
from toolwright.workflow.operators import TASK
from toolwright.workflow.program import Workflow

Features = Mapping[str, float]  # by name


def features(workflow: Workflow) -> dict[str, float]:
    """The features of a workflow: its operators alone and in pairs, edges, prompts, width and depth."""
    found: dict[str, float] = {}
    for node in workflow.live:
        name = node.operator
        found[f"has {name}"] = 1.0
        found[f"more {name}"] = min(2.0, found.get(f"more {name}", -1.0) + 1.0)
        if node.repeat > 1:
            found[f"repeat {name}"] = float(np.log2(node.repeat))
        if node.prompt:
            said = workflow.prompts.get(node.prompt, "")[:40]
            found[f"prompt {said}"] = found[f"prompted {name} {said}"] = 1.0
        for ref in node.refs:
            source = ref.node if ref.node == TASK else workflow.by_name[ref.node].operator
            found[f"edge {source}>{name}"] = 1.0
    for ref in refs_of(workflow.output):
        if ref.node != TASK:
            found[f"last {workflow.by_name[ref.node].operator}"] = 1.0
    kinds = sorted({node.operator for node in workflow.live})
    found.update({f"pair {a} {b}": 1.0 for i, a in enumerate(kinds) for b in kinds[i + 1 :]})
    found["depth"] = workflow.depth / 4
    found["calls"] = float(np.log2(1 + workflow.calls)) / 4
    return found


@dataclass
class Columns:
    """The column of each feature, assigned at its first use."""

    index: dict[str, int] = field(default_factory=dict)
    # The columns and values of features by their id, and the features, so that no other object gets that id.
    _placed: dict[int, tuple[list[int], list[float], Features]] = field(default_factory=dict, repr=False)

    def rows(self, found: Sequence[Features]) -> np.ndarray:
        """[workflows, features]. Features that were seen must not change."""
        for one in found:
            if id(one) not in self._placed:
                columns = [self.index.setdefault(name, len(self.index)) for name in one]
                self._placed[id(one)] = columns, list(one.values()), one
        rows = np.zeros((len(found), len(self.index)))
        for row, one in zip(rows, found, strict=True):
            columns, values, _ = self._placed[id(one)]
            row[columns] = values
        return rows
