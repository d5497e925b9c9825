"""Just enough HTTP to talk to a server under test, and to look at it from the host."""

from __future__ import annotations

import contextlib
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.waiting import wait_until

FOR_EVER = "import time; time.sleep(500)"


class Server:
    """A running server."""

    def __init__(self, url: str, token: str | None = None, pid: int = 0) -> None:
        self.url = url
        self.token = token
        self.pid = pid

    def ask(self, method: str, path: str, body: object = None, timeout: float = 120) -> tuple[int, Any]:
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

    def run(self, code: str, **options: Any) -> dict[str, Any]:
        return self.post("/run", {"code": code, **options})

    def status(self) -> dict[str, Any]:
        return self.ask("GET", "/status")[1]

    @contextlib.contextmanager
    def busy(self, code: str = FOR_EVER, path: str = "/run") -> Iterator[None]:
        """With one place taken, until the block ends: then the caller leaves, and the code with it."""
        running = self.status()["running"]
        body = json.dumps({"code": code, "timeout_s": 600}).encode()
        place = urlsplit(self.url)
        with socket.create_connection((place.hostname, place.port)) as caller:
            head = (
                f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            caller.sendall(head.encode() + body)
            wait_until(lambda: self.status()["running"] > running, "the code is under way")
            yield
        wait_until(lambda: self.status()["running"] <= running, "the code has left with its caller")

    @contextlib.contextmanager
    def session(self, **options: Any) -> Iterator[LiveSession]:
        live = LiveSession(self, self.post("/sessions", options)["id"])
        try:
            yield live
        finally:
            self.ask("DELETE", f"/sessions/{live.name}")


class LiveSession:
    """An open session of a server."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name

    def ask(self, code: str, **options: Any) -> tuple[int, Any]:
        return self.server.ask("POST", f"/sessions/{self.name}/run", {"code": code, **options})

    def cell(self, code: str, **options: Any) -> dict[str, Any]:
        status, answer = self.ask(code, **options)
        assert status == 200, (status, answer)
        return answer


def processes_named(name: str) -> list[int]:
    """By the name that a process gave itself."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text().strip() == name:
                found.append(int(path.parent.name))
    return found
