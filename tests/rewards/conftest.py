"""One sandbox for all tests of this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from toolwright.sandbox import layers
from toolwright.sandbox.local import local_server


@pytest.fixture(scope="session")
def sandbox_url() -> Iterator[str]:
    missing = layers.missing()
    if missing:
        pytest.skip(f"this kernel lacks layers of isolation: {missing}")
    with local_server("--workers", "2", "--queue-limit", "2000") as url:
        yield url
