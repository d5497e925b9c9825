"""Kernels run compiled where there is a GPU, and interpreted where there is none: the same lines of code."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest
import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")
if find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
elif not ON_GPU:
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def with_bounds(tensor: Any, scope: Any) -> None:
        """Triton 3.6's interpreter makes a loop's bound of an array of one, which NumPy 2.4 refuses."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = with_bounds


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if ON_GPU else "cpu")
