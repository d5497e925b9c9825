"""A workflow as numbers: what a value can be learned over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from toolwright.workflow.operators import TASK
from toolwright.workflow.program import Workflow, refs_of

FEATURES = 256  # columns; names beyond it are not told apart from one another


def features(workflow: Workflow) -> dict[str, float]:
    """What a workflow is made of: its operators, who reads whom, which prompts, how wide, how deep."""
    found: dict[str, float] = {}
    for node in workflow.live:
        name = node.operator
        found[f"has {name}"] = 1.0
        found[f"more {name}"] = min(2.0, found.get(f"more {name}", -1.0) + 1.0)
        if node.repeat > 1:
            found[f"repeat {name}"] = float(np.log2(node.repeat))
        if node.prompt:
            found[f"prompt {name} {workflow.prompts.get(node.prompt, '')[:40]}"] = 1.0
        for ref in node.refs:
            source = ref.node if ref.node == TASK else workflow.by_name[ref.node].operator
            found[f"edge {source}>{name}"] = 1.0
    for ref in refs_of(workflow.output):
        if ref.node != TASK:
            found[f"last {workflow.by_name[ref.node].operator}"] = 1.0
    found["depth"] = workflow.depth / 4
    found["calls"] = float(np.log2(1 + workflow.calls)) / 4
    return found


@dataclass
class Columns:
    """Which column a feature has; given on first sight."""

    index: dict[str, int] = field(default_factory=dict)

    def row(self, found: Mapping[str, float]) -> np.ndarray:
        row = np.zeros(FEATURES)
        for name, value in found.items():
            row[self.index.setdefault(name, len(self.index)) % FEATURES] += value
        return row
