"""A real HTTP server that answers as a test has written it down, one answer a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Flaky:
    """`answers`: status and body of each request, in order, with headers where they matter; None hangs up.
    Bytes are sent as they are."""

    answers: list[tuple[int, Any, dict[str, str]] | None]
    url: str = ""
    bodies: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = [line.partition(":") for line in head.split("\r\n")[1:] if line]
        headers = {name.lower(): value.strip() for name, _, value in lines}
        self.headers.append(headers)
        self.bodies.append(json.loads(await reader.readexactly(int(headers.get("content-length", 0)))))
        answer = self.answers[min(len(self.bodies), len(self.answers)) - 1]
        if answer is not None:
            status, body, extra = answer
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            told = {"content-type": "application/json", "content-length": len(raw), "connection": "close"}
            shown = "".join(f"{name}: {value}\r\n" for name, value in {**told, **extra}.items())
            writer.write(f"HTTP/1.1 {status} X\r\n{shown}\r\n".encode() + raw)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def flaky(*answers: tuple[int, Any, dict[str, str]] | None) -> AsyncIterator[Flaky]:
    made = Flaky(list(answers))
    server = await asyncio.start_server(made.talk, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield made
