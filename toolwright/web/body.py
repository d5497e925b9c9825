"""Reads the body of a request within a limit, and parses it without blocking others for long."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from toolwright.web.asgi import ClientDisconnected, Receive, Scope, header

# Parsing blocks the event loop: a million values take about 0.2 s. 64 MiB have room for twenty million, which
# would take 6 s and 2 GB.
MOST_VALUES = 1_000_000
_SLICE = 1 << 20
_BACKSLASH = ord("\\")


class BodyTooLarge(Exception):
    """The body has more bytes or more values than allowed."""


async def read_body(scope: Scope, receive: Receive, *, limit: int) -> bytearray:
    """The whole body. Raises `ClientDisconnected` if the client hangs up first."""
    text = f"the body is larger than {limit >> 20} MiB, which is the limit here"
    announced = header(scope, b"content-length")
    if announced.isdigit() and int(announced) > limit:
        raise BodyTooLarge(text)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        body += message.get("body", b"")
        if len(body) > limit:
            raise BodyTooLarge(text)
        if not message.get("more_body"):
            return body


async def parse_json(body: bytearray) -> Any:
    """Raises `orjson.JSONDecodeError`, or `BodyTooLarge` if the body has too many values."""
    if len(body) > _SLICE:
        await _count_values(body)
    return orjson.loads(body)


async def _count_values(body: bytearray) -> None:
    """Counts strings, and commas and brackets outside of strings, slice by slice."""
    count = start = 0
    in_string = False
    while start < len(body):
        end = start + _SLICE
        while end < len(body) and body[end - 1] == _BACKSLASH:  # an escape stays whole
            end += 1
        parts = bytes(body[start:end]).replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = parts[1 if in_string else 0 :: 2]
        count += (len(parts) - in_string) // 2  # quotation marks that open a string
        count += sum(part.count(b",") + part.count(b"[") + part.count(b"{") for part in outside)
        if count > MOST_VALUES:
            raise BodyTooLarge(
                f"the body has more than {MOST_VALUES:,} values: split it into several requests"
            )
        in_string ^= len(parts) % 2 == 0
        start = end
        await asyncio.sleep(0)
