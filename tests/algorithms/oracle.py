"""The recorded numbers of verl and verl-agent, as tensors; `verl_numbers.md` says where they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

_FILE = Path(__file__).with_name("verl_numbers.json")


def load() -> list[dict[str, Any]]:
    recorded = json.loads(_FILE.read_text())
    matrices = [torch.tensor(matrix, dtype=torch.float32) for matrix in recorded["matrices"]]

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: resolve(item) for key, item in value.items()}
        if isinstance(value, list):
            return [resolve(item) for item in value]
        if isinstance(value, str) and value.startswith("#"):
            return matrices[int(value[1:])]
        return value

    return [resolve(case) for case in recorded["cases"]]


def cases(section: str) -> list[Any]:
    """Every recorded case of a section, with a readable name for each."""
    return [
        pytest.param(case, id=f"{case.get('case', case.get('mode'))}-seed{batch['seed']}")
        for batch in load()
        for case in batch[section]
    ]
