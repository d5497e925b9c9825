"""The tools of an MCP server, with their own schemas, through the official SDK."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import PositiveFloat

from toolwright.failures import InfrastructureFailure, UserError, nearest
from toolwright.tools import TOOLS
from toolwright.tools.call import Caller
from toolwright.tools.mcp_connection import McpConnection, http, stdio
from toolwright.tools.offer import BadArguments, Offer, ToolError, ToolTimeout

if TYPE_CHECKING:
    from mcp.types import CallToolResult, Tool

_PAGES = 100
_ALIVE_S = 5.0


@TOOLS.register("mcp")
class MCP:
    """`command` starts a server, `url` names one that runs; `only` picks some of its tools."""

    keeps_time = True  # only this class can tell a slow tool from a dead server

    def __init__(
        self,
        *,
        command: str | None = None,
        args: list[str] | None = None,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        url: str | None = None,
        headers: dict[str, str] | None = None,
        prefix: str = "",
        only: list[str] | None = None,
        start_timeout_s: PositiveFloat = 30.0,
        timeout_s: PositiveFloat = 30.0,
    ) -> None:
        self._prefix, self._only, self._limit_s = prefix, only, timeout_s
        way = stdio(command, args or [], env or {}, cwd) if command else http(url or "", headers or {})
        server = url or " ".join([command or "", *(args or [])])
        self._connection = McpConnection(way, server=server, restarts=bool(command), start_s=start_timeout_s)

    @staticmethod
    def check_settings(**settings: Any) -> None:
        if bool(settings.get("command")) == bool(settings.get("url")):
            raise UserError("set either `command`, to start an MCP server, or `url`, of one that runs")
        if importlib.util.find_spec("mcp") is None:
            raise UserError("MCP servers need the official SDK: pip install 'toolwright[mcp]'")

    async def tools(self) -> list[Offer]:
        listed = await self._list()
        known = [tool.name for tool in listed]
        for name in self._only or []:
            if name not in known:
                raise UserError(
                    f"the MCP server {self._connection.server} has no tool {name!r}; {nearest(name, known)}"
                )
        return [self._offer(tool) for tool in listed if self._only is None or tool.name in self._only]

    async def close(self) -> None:
        await self._connection.close()

    async def _list(self) -> list[Tool]:
        found: list[Tool] = []
        cursor: str | None = None
        for _ in range(_PAGES):
            page = await self._connection.ask(lambda client, at=cursor: client.list_tools(cursor=at))  # type: ignore[misc]
            found += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
        return found

    def _offer(self, tool: Tool) -> Offer:
        async def run(arguments: dict[str, Any], caller: Caller) -> str:
            return _text(await self._call(tool.name, arguments))

        return Offer(
            name=self._prefix + tool.name,
            description=tool.description or tool.title or tool.name,
            parameters=tool.input_schema,
            check=functools.partial(_check, tool.input_schema),
            run=run,
        )

    async def _call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        from mcp import MCPError
        from mcp_types import REQUEST_TIMEOUT

        limit = self._limit_s
        try:
            return await self._connection.ask(
                lambda client: client.call_tool(name, arguments, read_timeout_seconds=limit)
            )
        except MCPError as error:
            if error.code != REQUEST_TIMEOUT:
                raise ToolError(f"{self._prefix}{name}: {error.message}") from None
        await self._check_alive()
        raise ToolTimeout(f"{self._prefix}{name} did not answer within {limit:g} s")

    async def _check_alive(self) -> None:
        """Raises InfrastructureFailure if the server does not list its tools any more."""
        import asyncio

        try:
            async with asyncio.timeout(_ALIVE_S):
                await self._connection.ask(lambda client: client.list_tools(cache_mode="bypass"))
        except TimeoutError:
            raise InfrastructureFailure(
                f"the MCP server {self._connection.server} does not answer: "
                f"no call within {self._limit_s:g} s, nor a list of its tools within {_ALIVE_S:g} s"
            ) from None


def _check(schema: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Checks arguments against the server's schema. Text becomes the number or list that it spells."""
    import json

    import jsonschema

    checked = dict(arguments)
    for key, place in schema.get("properties", {}).items():
        kinds = {place.get("type")} | {one.get("type") for one in place.get("anyOf", [])}
        if isinstance(checked.get(key), str) and "string" not in kinds and kinds - {None}:
            try:
                checked[key] = json.loads(checked[key])
            except (ValueError, RecursionError):
                continue
    try:
        jsonschema.validate(checked, schema)
    except jsonschema.ValidationError as error:
        where = ".".join(str(part) for part in error.absolute_path)
        raise BadArguments(f"{where}: {error.message}"[:300] if where else error.message[:300]) from None
    except jsonschema.SchemaError:
        pass  # an invalid schema: the server checks the arguments itself
    return checked


def _text(result: CallToolResult) -> str:
    parts = []
    for block in result.content:
        text = getattr(block, "text", None) or getattr(getattr(block, "resource", None), "text", None)
        parts.append(text if text is not None else f"({block.type} left out: the policy can read text only)")
    whole = "\n".join(parts) or "(no output)"
    if result.is_error:
        raise ToolError(whole)
    return whole
