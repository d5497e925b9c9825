"""Messages between the processes: frames from server to worker, packets from worker to zygote."""

from __future__ import annotations

import marshal
import os
import struct
from typing import Any

# Server to worker and back: length of the body, kind, number of the call, body (JSON).
FRAME = struct.Struct("<IBI")
RUN, OPEN, CELL, CLOSE, READY, RESULT, LOST, CANCEL, CHECK = range(1, 10)

# Worker to zygote: verb, number of the child, argument; descriptors travel beside a FORK.
ORDER = struct.Struct("<BIi")
FORK, SIGNAL, GET_PID = 1, 2, 3
# Zygote to worker: verb, number of the child, wait status or process id, seconds of CPU, peak resident KB.
EVENT = struct.Struct("<BIidq")
ENDED, PID = 1, 2

# A session's interpreter to the worker: number of the cell, outcome, length of the value that follows.
REPLY = struct.Struct("<IBI")
CELL_OK, CELL_ERROR = 0, 1

_LENGTH = struct.Struct("<I")


def frame(kind: int, number: int, body: bytes = b"") -> bytes:
    return FRAME.pack(len(body), kind, number) + body


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        self._buffer += data
        frames = []
        start = 0
        while len(self._buffer) - start >= FRAME.size:
            length, kind, number = FRAME.unpack_from(self._buffer, start)
            end = start + FRAME.size + length
            if len(self._buffer) < end:
                break
            frames.append((kind, number, bytes(self._buffer[start + FRAME.size : end])))
            start = end
        del self._buffer[:start]
        return frames


def pack_job(job: dict[str, Any]) -> bytes:
    """A job as bytes for a child, without empty fields: each object costs the child time.

    Only the child reads marshal, and nobody believes the child.
    """
    return with_length(marshal.dumps({name: value for name, value in job.items() if value}))


def read_job(channel: int) -> dict[str, Any] | None:
    """The next job, or None if the worker has closed the channel."""
    body = read_message(channel)
    return None if body is None else marshal.loads(body)


def with_length(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def read_message(channel: int) -> bytes | None:
    """The next body that was sent with its length, or None if the other side has closed the channel."""
    header = _read_exactly(channel, _LENGTH.size)
    return None if header is None else _read_exactly(channel, _LENGTH.unpack(header)[0])


def _read_exactly(channel: int, size: int) -> bytes | None:
    data = os.read(channel, size)
    if len(data) == size:
        return data
    pieces = bytearray(data)
    while data and len(pieces) < size:
        data = os.read(channel, size - len(pieces))
        pieces += data
    return bytes(pieces) if len(pieces) == size else None


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
