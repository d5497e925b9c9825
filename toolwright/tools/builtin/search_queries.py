"""Search by several queries in one call, as verl's `SearchTool` has it."""

from __future__ import annotations

import asyncio
import json

from toolwright.tools import TOOLS
from toolwright.tools.builtin.search import SearchTool
from toolwright.tools.offer import ToolError

_MOST = 16  # queries of one call


@TOOLS.register("search_queries")
class SearchQueries(SearchTool):
    """Searches for relevant information based on the given queries.

    Args:
        query_list: fully formed queries; the results of each are returned
    """

    async def __call__(self, query_list: list[str]) -> str:  # type: ignore[override]
        if not 1 <= len(query_list) <= _MOST:
            raise ToolError(f"a call has 1 to {_MOST} queries")
        found = await asyncio.gather(*(super(SearchQueries, self).__call__(query) for query in query_list))
        return json.dumps({"result": "\n---\n".join(found)}, ensure_ascii=False)
