"""A sandbox for the tests of a process, and toolboxes in an event loop that ends with the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from toolwright.sandbox import layers
from toolwright.sandbox.local import local_server
from toolwright.tools.call import ToolRequest, ToolResult
from toolwright.tools.toolbox import Toolbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[str]:
    if missing := layers.missing():
        pytest.skip(f"this kernel lacks layers of isolation: {missing}")
    with local_server("--workers", "2") as url:
        yield url


class Box:
    """A toolbox driven from outside its loop."""

    def __init__(self, settings: Any, **options: Any) -> None:
        self.runner = asyncio.Runner()
        self.toolbox = Toolbox(settings, **options)

    def call(self, tool: str, *, attempt: str = "a", **arguments: Any) -> ToolResult:
        return self.runner.run(self.toolbox.call(ToolRequest(tool, arguments), attempt=attempt))

    def schemas(self) -> dict[str, dict[str, Any]]:
        found = self.runner.run(self.toolbox.schemas())
        assert all(one["type"] == "function" for one in found)
        return {one["function"]["name"]: one["function"] for one in found}

    def end(self, attempt: str = "a") -> None:
        self.runner.run(self.toolbox.end(attempt))

    def close(self) -> None:
        self.runner.run(self.toolbox.close())
        self.runner.close()


@pytest.fixture
def box() -> Iterator[Callable[..., Box]]:
    made: list[Box] = []

    def make(settings: Any, **options: Any) -> Box:
        made.append(Box(settings, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
