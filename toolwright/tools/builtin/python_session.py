"""Python in a live session for each attempt, opened by its first call and closed with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from toolwright.tools import TOOLS
from toolwright.tools.call import ToolResult
from toolwright.tools.sandboxed import SandboxTool, sendable

if TYPE_CHECKING:
    from toolwright.sandbox.client import SandboxSession

_LONGEST = 1 << 20
_ENDED = "the session has ended:"  # the server's reason if a cell ended its session


@TOOLS.register("python_session", needs=["sandbox"])
class PythonSession(SandboxTool):
    """Run Python code in a live session, as a notebook does: variables and imports are kept between calls.

    Args:
        code: the code of one cell; what it prints is returned, and the value of a last expression
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._sessions: dict[str, SandboxSession] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def __call__(self, code: str, *, attempt: str) -> ToolResult:
        cell = sendable(code, "code", _LONGEST)
        # Two calls of one turn must not open two sessions; cells of one session run one after the other.
        async with self._turns.setdefault(attempt, asyncio.Lock()):
            if attempt not in self._sessions:
                options = {} if self._memory_mb is None else {"memory_mb": self._memory_mb}
                self._sessions[attempt] = await self._with_server_name(self._client.open_session(**options))
            session = self._sessions[attempt]
            result = await self._with_server_name(session.run(cell, timeout_s=self._code_s))
            if not result.reason.startswith(_ENDED):
                return self._answer(result, silent="(no output)")
            # The policy itself ended the session: it is told, and may go on with an empty one. A session lost
            # in any other way has raised above, and the attempt is repeated.
            self._sessions.pop(attempt, None)
            note = f"{result.reason}; its variables are gone; the next call starts a new one"
            return self._answer(result, silent="", note=note)

    async def end(self, attempt: str) -> None:
        self._turns.pop(attempt, None)
        session = self._sessions.pop(attempt, None)
        if session is not None:
            await session.close()
