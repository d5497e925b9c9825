"""A server for the tests of a process, and single runs with fewer layers."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from toolwright.sandbox import layers
from toolwright.sandbox.limits import Limits
from toolwright.sandbox.local import local_server
from toolwright.sandbox.once import run_once
from toolwright.sandbox.settings import Settings

MISSING = layers.missing()
needs_isolation = pytest.mark.skipif(
    bool(MISSING), reason=f"this kernel lacks layers of isolation: {MISSING}"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root could do this harm, were it not stopped")


class Server:
    """Just enough HTTP to talk to a server under test."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self.token = token

    def ask(self, method: str, path: str, body: object = None, timeout: float = 60) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def post(self, path: str, body: object) -> Any:
        code, answer = self.ask("POST", path, body)
        assert code == 200, (code, answer)
        return answer

    def run(self, code: str, **wishes: Any) -> dict[str, Any]:
        return self.post("/run", {"code": code, **wishes})

    def status(self) -> dict[str, Any]:
        return self.ask("GET", "/status")[1]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Fully isolated, shared by all tests of this process; none of them may leave a trace in it."""
    if MISSING:
        pytest.skip(f"this kernel lacks layers of isolation: {MISSING}")
    os.environ["SANDBOX_TEST_SECRET"] = "the-server-knows"
    with local_server("--workers", "2", "--queue-limit", "2000") as url:
        yield Server(url)


def run_alone(
    code: str, isolation: str = "full", limits: Limits | None = None, **wishes: Any
) -> dict[str, Any]:
    """One run without a server, with the layers of one's choice.

    An ordinary user who gives up the user namespace has to give up the others with it.
    """
    if "-user" in isolation.split(",") and os.geteuid() != 0:
        isolation = ",".join({*isolation.split(","), *(f"-{name}" for name in layers.NAMESPACES)})
    settings = Settings(
        isolation=isolation, workers=1, runs_per_worker=1, preload=(), limits=limits or Limits()
    )
    return asyncio.run(run_once(settings, code, **wishes))
