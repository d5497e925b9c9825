"""What holds for every test: nothing it imported from its own folder stays, and what it lacks is said."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from tempfile import gettempdir

import pytest


@pytest.fixture(autouse=True)
def no_imports_left() -> Iterator[None]:
    """A module written by a test and imported by its name would be found by another that writes its own."""
    path, known = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(gettempdir()):
            del sys.modules[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on vLLM are collected everywhere, and skipped before their fixtures where it is missing."""
    if importlib.util.find_spec("vllm") is None:
        missing = pytest.mark.skip(reason="vLLM is not installed here; `make test-vllm` installs it")
        for item in items:
            if item.get_closest_marker("vllm"):
                item.add_marker(missing)
