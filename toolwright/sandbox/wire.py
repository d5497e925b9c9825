"""How the processes of the sandbox talk: frames from server to worker, packets from worker to zygote."""

from __future__ import annotations

import marshal
import os
import struct
from typing import Any

# Server to worker and back: length of the body, kind, number of the call, body (JSON).
FRAME = struct.Struct("<IBI")
RUN, OPEN, CELL, CLOSE, READY, RESULT, LOST, CANCEL, TRIAL = range(1, 10)

# Worker to zygote: verb, number of the child, argument; descriptors travel beside a FORK.
ORDER = struct.Struct("<BIi")
FORK, SIGNAL, WHICH = 1, 2, 3
# Zygote to worker: verb, number of the child, wait status or process id, seconds of CPU, peak resident KB.
NEWS = struct.Struct("<BIidq")
ENDED, IS = 1, 2

# A session's interpreter to the worker: number of the cell, outcome, length of the value that follows.
REPLY = struct.Struct("<IBI")
CELL_OK, CELL_ERROR = 0, 1

_LENGTH = struct.Struct("<I")


def frame(kind: int, number: int, body: bytes = b"") -> bytes:
    return FRAME.pack(len(body), kind, number) + body


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        self._held += data
        frames = []
        start = 0
        while len(self._held) - start >= FRAME.size:
            length, kind, number = FRAME.unpack_from(self._held, start)
            end = start + FRAME.size + length
            if len(self._held) < end:
                break
            frames.append((kind, number, bytes(self._held[start + FRAME.size : end])))
            start = end
        del self._held[:start]
        return frames


def pack_job(job: dict[str, Any]) -> bytes:
    """A job on its way into a child, without what is empty or not wished for: each object costs the child.

    Marshal is read by the child only, whose word nobody takes.
    """
    body = marshal.dumps({name: value for name, value in job.items() if value})
    return _LENGTH.pack(len(body)) + body


def read_job(channel: int) -> dict[str, Any] | None:
    """The next job, or None when the worker has hung up."""
    header = _read_exactly(channel, _LENGTH.size)
    if header is None:
        return None
    body = _read_exactly(channel, _LENGTH.unpack(header)[0])
    return None if body is None else marshal.loads(body)


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
