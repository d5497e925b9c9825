"""A small MCP server, over standard input and output, or over HTTP on the port it is given."""

from __future__ import annotations

import asyncio
import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("demo", log_level="CRITICAL")


@server.tool()
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("no luck")


@server.tool()
async def hang() -> str:
    """Does not answer."""
    await asyncio.sleep(1000)
    return ""


@server.tool()
def pid() -> int:
    """The process that answers."""
    return os.getpid()


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
