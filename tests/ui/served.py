"""The page's server in this process, and just enough HTTP to ask it anything."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from toolwright.ui.app import UiApp
from toolwright.ui.assets import Assets
from toolwright.ui.run_library import RunLibrary
from toolwright.web.callers import Callers
from toolwright.web.loop_thread import LoopThread
from toolwright.web.serving import serve_in_background


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class ServedPage:
    url: str
    app: UiApp

    def ask(self, path: str, *, method: str = "GET", **headers: str) -> Reply:
        """The path goes out as it is: nothing is tidied up on the way."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        found = Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        connection.close()
        return found

    def get(self, path: str) -> Any:
        """The JSON at an address that must be there."""
        reply = self.ask(path)
        assert reply.status == 200, reply.body
        return reply.data

    def of_run(self, run: str, rest: str = "") -> Any:
        return self.get(f"/api/runs/{quote(run, safe='')}{rest}")

    @contextmanager
    def events(self) -> Iterator[Iterator[tuple[str, Any]]]:
        """Kind and data of each event, as they come."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        connection.request("GET", "/api/events")
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.getheader("content-type", "").startswith("text/event-stream")

        def read() -> Iterator[tuple[str, Any]]:
            kind = ""
            for line in answer:
                if line.startswith(b"event: "):
                    kind = line[7:].strip().decode()
                elif line.startswith(b"data: "):
                    yield kind, json.loads(line[6:])

        try:
            yield read()
        finally:
            connection.close()


@contextmanager
def serving(folder: Path, *, static: Path | None = None, **callers: Any) -> Iterator[ServedPage]:
    """A server over this folder. Without `static`, the front end of the package."""
    app = UiApp(
        RunLibrary(folder),
        Callers(**{"bound": "127.0.0.1", **callers}),
        assets=None if static is None else Assets(static),
    )
    thread, stop = LoopThread("page"), asyncio.Event()
    started: Future[str] = Future()

    async def serve() -> None:
        async with serve_in_background(app) as url:
            started.set_result(url)
            await stop.wait()

    running = thread.submit(serve())
    try:
        yield ServedPage(started.result(timeout=60), app)
    finally:
        thread.call_soon(stop.set)
        running.result(timeout=60)
        thread.close()
