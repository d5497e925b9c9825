"""Ports for servers that cannot be told to take a free one and say which."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """Below those that the system hands out: no other's outgoing call takes it before its server does."""
    draw = random.SystemRandom()
    while True:
        port = draw.randrange(20_000, 30_000)
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
