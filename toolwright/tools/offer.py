"""A tool as the policy sees it: its name, description, schema, and how it is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolwright.failures import UserError
from toolwright.tools.call import Caller
from toolwright.tools.signature import ATTEMPT, Signature
from toolwright.tools.thread import in_thread


class ToolError(Exception):
    """Raised by a tool that cannot answer a call. The policy sees the text; the log gets no traceback."""


class ToolTimeout(ToolError):
    """The call took too long. For tools that keep their time themselves."""


@dataclass(frozen=True)
class Offer:
    """A tool with its settings applied."""

    name: str
    description: str
    parameters: dict[str, Any]  # a JSON schema
    check: Callable[[Mapping[str, Any]], dict[str, Any]]  # raises BadArguments
    run: Callable[[dict[str, Any], Caller], Awaitable[Any]]  # of checked arguments

    @property
    def schema(self) -> dict[str, Any]:
        """The schema in OpenAI's form."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


def offer_of(
    name: str,
    target: Callable[..., Any],
    *,
    instance: Callable[[], Callable[..., Any]] | None = None,
    doc: str | None = None,
    description: str | None = None,
) -> Offer:
    """The tool of a typed callable. `instance` gives the object to call, if it is built later."""
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise UserError(f"tool {name!r} is a generator; return the answer instead of yielding it")
    signature = Signature(name, target, doc=doc)
    described = description or signature.description
    if not described:
        raise UserError(f"tool {name!r} has no docstring; write one: the policy reads it")

    async def run(arguments: dict[str, Any], caller: Caller) -> Any:
        called = instance() if instance else target
        keywords = {**arguments, ATTEMPT: caller.attempt} if signature.takes_attempt else arguments
        if signature.takes_task:
            if caller.task is None:
                raise ToolError(f"{name} works on the task of an attempt, and this call has none")
            keywords = {**keywords, signature.takes_task: caller.task}
        if _is_async(called):
            return await called(**keywords)
        result = await in_thread(name, functools.partial(called, **keywords))
        return await result if inspect.isawaitable(result) else result

    return Offer(name, described, signature.schema, signature.check, run)


def _is_async(target: Callable[..., Any]) -> bool:
    while isinstance(target, functools.partial):
        target = target.func
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(
        getattr(target, "__call__", None)  # noqa: B004 - an object whose call is a coroutine
    )
