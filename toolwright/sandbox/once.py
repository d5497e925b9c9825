"""One run without a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.sandbox.languages import UnknownLanguage
from toolwright.sandbox.queue import Flow
from toolwright.sandbox.requests import RunRequest
from toolwright.sandbox.service import SandboxService
from toolwright.sandbox.settings import SandboxSettings


async def run_once(
    settings: SandboxSettings, code: str, language: str = "python", stdin: str = ""
) -> dict[str, Any]:
    """Starts one worker, runs, leaves nothing behind; preloads only what the code names."""
    settings = replace(settings, preload=tuple(name for name in settings.preload if name in code))
    service = SandboxService(settings)
    try:
        await service.start()
        return orjson.loads(await service.run(RunRequest(code=code, language=language, stdin=stdin), Flow()))
    except UnknownLanguage as error:
        raise UserError(str(error)) from None
    except InfrastructureFailure as error:
        raise UserError(str(error)) from None
    finally:
        await service.close()
