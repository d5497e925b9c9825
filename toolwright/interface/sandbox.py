"""The sandbox for scripts and notebooks: isolated Python without a server to start."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import Any

from toolwright.sandbox.client import BlockingClient
from toolwright.sandbox.local import local_server


class Sandbox(BlockingClient):
    """Run code in isolation. Without `urls` a server is started here, and ends with `close` or the process.

    with Sandbox() as sandbox:
        print(sandbox.run("print(6 * 7)").stdout)
    """

    def __init__(self, urls: str | list[str] | None = None, **options: Any) -> None:
        opened = ExitStack()
        super().__init__(urls or opened.enter_context(local_server()), **options)
        self._server = weakref.finalize(self, opened.close)

    def close(self) -> None:
        super().close()
        self._server()
