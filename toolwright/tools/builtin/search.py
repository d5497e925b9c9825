"""Search in an index over a local corpus, or with a search server."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.tasks.worker_thread import in_thread
from toolwright.tools import TOOLS
from toolwright.tools.offer import ToolError

if TYPE_CHECKING:
    from toolwright.tools.corpus import Corpus
    from toolwright.tools.retriever import Retriever

_LONGEST = 4096  # characters of a query


@TOOLS.register("search")
class SearchTool:
    """Search for passages that answer a question.

    Args:
        query: what to look for, in a few words
    """

    files = ("corpus",)
    keeps_time = True  # neither an index being built nor a late server is the query's fault

    def __init__(
        self,
        *,
        corpus: str | None = None,
        url: str | None = None,
        topk: PositiveInt = 3,
        request: Any = None,
        method: Literal["GET", "POST"] = "POST",
        headers: dict[str, str] | None = None,
        results: str = "",
        text: str = "{contents}",
        batch_size: PositiveInt = 64,
        concurrency: PositiveInt = 16,
        max_retries: NonNegativeInt = 8,
        index_timeout_s: PositiveFloat = 900.0,
        timeout_s: PositiveFloat = 30.0,
    ) -> None:
        self._topk, self._corpus, self._index_s = topk, Path(corpus or "").expanduser(), index_timeout_s
        self._index: asyncio.Task[Corpus] | None = None
        self._retriever: Retriever | None = None
        if url:
            from toolwright.tools.retriever import Retriever, Template

            by_template = request is not None or results or method == "GET" or "{query}" in url
            self._retriever = Retriever(
                url,
                template=Template(request, method, headers or {}, results, text) if by_template else None,
                topk=topk,
                batch_size=batch_size,
                concurrency=concurrency,
                timeout_s=timeout_s,
                max_retries=max_retries,
            )

    @staticmethod
    def check_settings(**settings: Any) -> None:
        if bool(settings.get("corpus")) == bool(settings.get("url")):
            raise UserError("set either `corpus`, a file of documents, or `url`, a search server")
        if settings.get("corpus"):
            from toolwright.tools import corpus

            corpus.check(settings["corpus"])

    async def __call__(self, query: str) -> str:
        if not query.strip() or len(query) > _LONGEST:
            raise ToolError(f"a query has 1 to {_LONGEST} characters")
        if self._retriever is not None:
            return _text(await self._retriever.search(query))
        corpus = await self._ready()
        return _text(await in_thread("search", functools.partial(corpus.search, query, self._topk)))

    async def close(self) -> None:
        if self._index is not None:
            self._index.cancel()
        if self._retriever is not None:
            await self._retriever.close()

    async def _ready(self) -> Corpus:
        """The index. The first query starts to build it; a query that gives up does not stop that."""
        if self._index is None:
            self._index = asyncio.create_task(self._build())
        try:
            async with asyncio.timeout(self._index_s):
                return await asyncio.shield(self._index)
        except TimeoutError:
            raise InfrastructureFailure(
                f"the search index over {self._corpus} was not ready within {self._index_s:g} s"
            ) from None

    async def _build(self) -> Corpus:
        from toolwright.tools.corpus import Corpus

        return await in_thread("search index", functools.partial(Corpus, self._corpus))


def _text(texts: list[str]) -> str:
    """Passages in Search-R1's format. The first line of each is its title."""
    lines = []
    for number, text in enumerate(texts, 1):
        title, _, rest = text.strip().partition("\n")
        lines.append(f"Doc {number}(Title: {title}) {rest}" if rest else f"Doc {number} {title}")
    return "\n".join(lines) or "(nothing was found)"
