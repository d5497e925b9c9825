"""Just enough HTTP to talk to a server under test, and to look at it from the host."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Server:
    """A running server."""

    def __init__(self, url: str, token: str | None = None, pid: int = 0) -> None:
        self.url = url
        self.token = token
        self.pid = pid

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

    @contextlib.contextmanager
    def session(self, **wishes: Any) -> Iterator[LiveSession]:
        live = LiveSession(self, self.post("/sessions", wishes)["id"])
        try:
            yield live
        finally:
            self.ask("DELETE", f"/sessions/{live.name}")


class LiveSession:
    """An open session of a server."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name

    def ask(self, code: str, **wishes: Any) -> tuple[int, Any]:
        return self.server.ask("POST", f"/sessions/{self.name}/run", {"code": code, **wishes})

    def cell(self, code: str, **wishes: Any) -> dict[str, Any]:
        status, answer = self.ask(code, **wishes)
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
