"""A trial as its worker sees it: a solution and its checker, two runs with a line between them."""

from __future__ import annotations

from typing import Any

from toolwright.sandbox.execution import Execution


class Trial:
    """Neither run can reach the other but by the line. When both have ended, so has the trial."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.runs: dict[str, Execution] = {}
        self.results: dict[str, dict[str, Any]] = {}

    def end(self, why: str) -> None:
        for run in self.runs.values():
            run.end(why)

    def ended(self, name: str, result: dict[str, Any]) -> bool:
        """Keeps the result of one run; whether it was the last. The checker's end is the solution's."""
        self.results[name] = result
        if name == "checker" and "solution" not in self.results:
            self.runs["solution"].end("checked")
        return len(self.results) == 2
