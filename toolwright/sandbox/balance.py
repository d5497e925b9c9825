"""Several servers behind one client: the least busy one is asked, a sick one is left alone for a while."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

_EJECT_AFTER = 3
_EJECT_S = 5.0
_EJECT_MOST_S = 60.0


@dataclass(eq=False)
class Server:
    """A URL and how it has been lately."""

    url: str
    outstanding: int = 0
    failures: int = 0
    ejections: int = 0
    back_at: float = 0.0
    probe: asyncio.Task[bool] | None = None  # whether it gives a sign of life
    return_watch: asyncio.Task[None] | None = None  # lets it back in

    @property
    def is_out(self) -> bool:
        return self.back_at > time.monotonic()

    def succeeded(self) -> None:
        self.failures = 0
        self.ejections = 0

    def failed(self) -> None:
        """Three failures in a row and it is left out, each time for longer."""
        self.failures += 1
        if self.failures >= _EJECT_AFTER and not self.is_out:
            self.eject()

    def eject(self) -> None:
        self.back_at = time.monotonic() + min(_EJECT_S * 2**self.ejections, _EJECT_MOST_S)
        self.ejections += 1
        # It comes back on probation: one more failure and it is out again.
        self.failures = _EJECT_AFTER - 1

    def let_in(self) -> None:
        self.back_at = 0.0


class Balance:
    """Who is asked next."""

    def __init__(self, urls: list[str]) -> None:
        if not urls:
            raise ValueError("a client needs at least one URL")
        self.servers = [Server(url.rstrip("/")) for url in urls]

    def choose(self, avoid: Server | None = None) -> Server:
        """The healthy server with the least outstanding; with none healthy, the one that is back first."""
        healthy = [server for server in self.servers if not server.is_out]
        others = [server for server in healthy if server is not avoid]
        candidates = others or healthy
        if candidates:
            return min(candidates, key=lambda server: server.outstanding)
        return min(self.servers, key=lambda server: server.back_at)

    def second(self, first: Server) -> Server | None:
        """Another healthy server than the first, if there is one."""
        healthy = [server for server in self.servers if server is not first and not server.is_out]
        return min(healthy, key=lambda server: server.outstanding, default=None)
