"""A tool server that is not ours: a POST of code, and the text of the answer.

Without `request` the body is `{"code": …, "stdin": …, "language": "python", "run_timeout": …}`, which
SandboxFusion understands too. Without `response` the answer is the output that it has under a usual name, or
its whole text.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.tools.offer import ToolError
from toolwright.tools.templates import RETRIED, at, filled

REQUEST = {"code": "{code}", "stdin": "{stdin}", "language": "python", "run_timeout": "{timeout_s}"}
OUTPUTS = ("run_result.stdout", "output", "stdout", "result")
ERRORS = ("run_result.stderr", "stderr", "error")
FUSION = "/run_code"  # SandboxFusion's path, where a URL is of the server alone
_PAUSE_S = 0.5


class PlainServer:
    """A server behind one HTTP session, with limits on requests at once and the time between two."""

    def __init__(
        self,
        url: str,
        *,
        request: Any,
        response: str | None,
        concurrency: int,
        request_interval: float,
        timeout_s: float,
        max_retries: int,
        retry_delay_s: float | None,
    ) -> None:
        """`request`: a body with `{code}`, `{stdin}` and `{timeout_s}`. `response`: the path to the text."""
        import aiohttp  # a third of a second that configurations need not wait for

        self._url, self._request, self._response, self._code_s = url, request, response, timeout_s
        self._max_retries = max_retries
        self._pause_s = _PAUSE_S if retry_delay_s is None else retry_delay_s
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s))
        self._slots, self._interval_s, self._next = asyncio.Semaphore(concurrency), request_interval, 0.0

    async def close(self) -> None:
        await self._http.close()

    async def run(self, code: str, stdin: str) -> str:
        """Run code and return the server's text. An error of the code is a ToolError with that text."""
        values = {"code": code, "stdin": stdin, "timeout_s": self._code_s}
        request = REQUEST if self._request is None else self._request
        answer = await self._ask(filled(request, values, keep_unknown=True))
        if (path := self._response) is not None:
            if (found := at(answer, path)) is None:
                raise UserError(
                    f"the tool server's answer has nothing at response={path!r}: {str(answer)[:200]}"
                )
            return _text(found)
        said = next((text for path in OUTPUTS if (text := at(answer, path)) is not None), None)
        wrong = next((text for path in ERRORS if (text := at(answer, path))), None)
        if wrong:
            raise ToolError("\n".join(filter(None, (_text(said or "").rstrip(), _text(wrong).rstrip()))))
        return _text(answer if said is None else said).rstrip("\n")

    async def _ask(self, body: Any) -> Any:
        import aiohttp

        tried = 0
        while True:
            try:
                async with self._slots:
                    await self._in_turn()
                    async with self._http.post(self._url, json=body) as response:
                        status, text = response.status, await response.text(errors="replace")
                if status == 200:
                    return _parsed(text)
                if status == 404 and not self._url.endswith(FUSION):
                    self._url = self._url.rstrip("/") + FUSION
                    continue
                reason = f"answered {status}: {text[:200]}"
                if status not in RETRIED:
                    raise UserError(f"the tool server {self._url} {reason}")
            except TimeoutError:
                reason = f"gave no answer within {self._code_s:g} s"
            except (aiohttp.ClientError, OSError) as error:
                reason = f"cannot be reached: {type(error).__name__}: {error}"
            tried += 1
            if tried > self._max_retries:
                raise InfrastructureFailure(f"the tool server {self._url} {reason} (tried {tried} times)")
            await asyncio.sleep(self._pause_s)

    async def _in_turn(self) -> None:
        """Wait for the configured time between two requests."""
        now = time.monotonic()
        wait = max(0.0, self._next - now)
        self._next = now + wait + self._interval_s
        await asyncio.sleep(wait)


async def is_ours(url: str) -> bool:
    """Return True if a sandbox of ours answers there; a server that cannot be reached may be one that
    restarts."""
    import aiohttp

    try:
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(f"{url}/health") as response:
            return response.status not in (400, 404, 405, 501)
    except (aiohttp.ClientError, OSError, TimeoutError):
        return True


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
