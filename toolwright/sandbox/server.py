"""Serves the sandbox over HTTP, or runs one program without a server."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.sandbox.app import SandboxApp
from toolwright.sandbox.queue import Flow
from toolwright.sandbox.requests import BadRequest, RunRequest
from toolwright.sandbox.service import SandboxService
from toolwright.sandbox.settings import SandboxSettings
from toolwright.web import serving
from toolwright.web.address import url_of
from toolwright.web.callers import Callers

TOKEN_VARIABLE = "TOOLWRIGHT_SANDBOX_TOKEN"


async def serve(
    settings: SandboxSettings, listener: socket.socket, callers: Callers, announce: Callable[[str], None]
) -> None:
    """Serves until SIGTERM or SIGINT, then finishes the work under way and leaves nothing behind."""
    async with _started(settings) as service:
        await serving.serve(
            SandboxApp(service, callers),
            listener,
            drain_s=settings.drain_s,
            on_start=lambda: announce(f"serving on {url_of(listener)}"),
        )


async def run_once(
    settings: SandboxSettings, code: str, language: str = "python", stdin: str = ""
) -> dict[str, Any]:
    """Starts one worker, runs the code, and leaves nothing behind. Preloads only what the code names."""
    settings = replace(settings, preload=tuple(name for name in settings.preload if name in code))
    async with _started(settings) as service:
        request = RunRequest(code=code, language=language, stdin=stdin)
        try:
            return orjson.loads(await service.run(request, Flow()))
        except (BadRequest, InfrastructureFailure) as error:
            raise UserError(str(error)) from None


@asynccontextmanager
async def _started(settings: SandboxSettings) -> AsyncIterator[SandboxService]:
    service = SandboxService(settings)
    try:
        try:
            await service.start()
        except InfrastructureFailure as error:
            raise UserError(str(error)) from None
        yield service
    finally:
        await service.close()
