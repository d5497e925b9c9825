"""Python on a code-judge server, with the settings that users of rStar2's tools have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeFloat, PositiveInt

from toolwright.tools import TOOLS
from toolwright.tools.builtin.python_session import PythonSession
from toolwright.tools.call import ToolResult
from toolwright.tools.offer import Offer, offer_of

if TYPE_CHECKING:
    from toolwright.sandbox.client import Client


@TOOLS.register("code_judge", needs=["sandbox"])
class CodeJudge(PythonSession):
    """`enable_jupyter` chooses between programs of their own and a live session for each attempt.

    Programs are sent in code-judge's own bodies, which our sandbox takes as well; sessions need our sandbox.
    """

    any_make = True  # of server: ours, or code-judge itself

    def __init__(
        self,
        *,
        name: str = "code_judge",
        enable_jupyter: bool = False,
        batch_size: PositiveInt = 4,
        concurrency: PositiveInt = 2,
        batch_timeout_seconds: NonNegativeFloat = 30.0,
        **settings: Any,
    ) -> None:
        self._name, self._jupyter = name, enable_jupyter
        super().__init__(
            batch_size=batch_size,
            concurrency=concurrency,
            batch_timeout_seconds=batch_timeout_seconds,
            **settings,
        )

    def _client_class(self) -> type[Client]:
        if self._jupyter:
            return super()._client_class()
        from toolwright.tools.judge_client import JudgeClient

        return JudgeClient

    async def tools(self) -> list[Offer]:
        if self._jupyter:
            return [offer_of(self._name, self.__call__, doc=PythonSession.__doc__)]
        return [offer_of(self._name, self.program)]

    async def program(self, code: str, input: str = "") -> ToolResult:
        """Run a Python program and get what it prints. Nothing is kept from one call to the next.

        Args:
            code: the program; print what you want to see
            input: what the program reads with input()
        """
        return await self._run(code, input)
