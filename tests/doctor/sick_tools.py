"""Tools that let a run down, loaded by path."""

from __future__ import annotations

from toolwright.failures import InfrastructureFailure


class Flaky:
    """A calculator whose server is out of reach for some sums.

    Args:
        expression: a sum
    """

    def __call__(self, expression: str) -> str:
        if expression.startswith("3"):
            raise InfrastructureFailure("no answer from http://sums.example:80")
        return str(sum(map(int, expression.split("+"))))


class Broken:
    """A calculator that raises.

    Args:
        expression: a sum
    """

    def __call__(self, expression: str) -> str:
        raise ValueError("the licence of the calculator has expired")
