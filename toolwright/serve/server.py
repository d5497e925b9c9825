"""Serving a model: until it is told to stop, and then without leaving anybody half answered."""

from __future__ import annotations

import socket
from collections.abc import Callable

from toolwright.providers.local import LocalModel
from toolwright.serve.app import ServeApp
from toolwright.serve.service import ModelService
from toolwright.web import serving
from toolwright.web.address import url_of
from toolwright.web.callers import Callers

TOKEN_VARIABLE = "TOOLWRIGHT_SERVE_TOKEN"


async def serve(
    model: LocalModel,
    listening: socket.socket,
    *,
    callers: Callers,
    queue_limit: int = 1024,
    drain_s: float = 30.0,
    said: Callable[[str], None],
) -> None:
    app = ServeApp(ModelService(model, queue_limit=queue_limit), callers)
    try:
        await serving.serve(
            app,
            listening,
            drain_s=drain_s,
            said=lambda: said(f"serving {model.name} on {url_of(listening)}"),
        )
    finally:
        await model.close()
