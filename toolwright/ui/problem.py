"""The error that a request gets instead of an answer."""

from __future__ import annotations


class PageProblem(Exception):
    """A request that cannot be answered. The text is one sentence for the person at the page."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
