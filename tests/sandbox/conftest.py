"""A server for the tests of a process, and single runs with fewer layers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from toolwright.sandbox import layers
from toolwright.sandbox.app import run_once
from toolwright.sandbox.limits import RunLimits
from toolwright.sandbox.settings import SandboxSettings

from .attack import Weakened, served_without
from .served import Server

MISSING = layers.missing()
needs_isolation = pytest.mark.skipif(
    bool(MISSING), reason=f"this kernel lacks layers of isolation: {MISSING}"
)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Fully isolated, shared by all tests of this process; none of them may leave a trace in it."""
    if MISSING:
        pytest.skip(f"this kernel lacks layers of isolation: {MISSING}")
    with served_without(frozenset(), "--workers", "2", "--queue-limit", "2000") as whole:
        yield whole


@pytest.fixture(scope="session")
def weakened() -> Iterator[Weakened]:
    """Servers that lack something."""
    servers = Weakened()
    yield servers
    servers.close()


def run_alone(
    code: str, isolation: str = "full", limits: RunLimits | None = None, **options: Any
) -> dict[str, Any]:
    """One run without a server, with the layers of one's choice.

    An ordinary user who gives up the user namespace has to give up the others with it.
    """
    if "-user" in isolation.split(",") and os.geteuid() != 0:
        isolation = ",".join({*isolation.split(","), *(f"-{name}" for name in layers.NAMESPACES)})
    settings = SandboxSettings(
        isolation=isolation, workers=1, runs_per_worker=1, preload=(), limits=limits or RunLimits()
    )
    return asyncio.run(run_once(settings, code, **options))
