"""What holds for every test: what one has imported from its own folder is not there for the next."""

from __future__ import annotations

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
