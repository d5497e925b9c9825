"""Serving: a socket, a service behind it, and an orderly end."""

from __future__ import annotations

import socket
from collections.abc import Callable

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.sandbox.app import SandboxApp
from toolwright.sandbox.service import SandboxService
from toolwright.sandbox.settings import SandboxSettings
from toolwright.web import serving
from toolwright.web.address import url_of
from toolwright.web.callers import Callers

TOKEN_VARIABLE = "TOOLWRIGHT_SANDBOX_TOKEN"


async def serve(
    settings: SandboxSettings, listening: socket.socket, callers: Callers, said: Callable[[str], None]
) -> None:
    """Until SIGTERM or SIGINT: then no new work, the old is finished, and nothing is left behind."""
    service = SandboxService(settings)
    try:
        await service.start()
    except InfrastructureFailure as error:
        raise UserError(str(error)) from None
    try:
        await serving.serve(
            SandboxApp(service, callers),
            listening,
            drain_s=settings.drain_s,
            said=lambda: said(f"serving on {url_of(listening)}"),
        )
    finally:
        await service.close()
