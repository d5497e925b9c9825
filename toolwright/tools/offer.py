"""One thing the policy can call: its name, what the policy is told of it, and how it is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from toolwright.failures import UserError
from toolwright.tools.signature import ATTEMPT, Signature
from toolwright.tools.thread import in_thread


class ToolError(Exception):
    """A tool's own word to the policy that it cannot answer this call; told as it is, no traceback."""


class ToolTimeout(ToolError):
    """The same, of a call that took too long: for tools that keep their time themselves."""


@dataclass(frozen=True)
class Offer:
    """What a tool amounts to once its settings are known."""

    name: str
    description: str
    parameters: dict[str, Any]  # a JSON schema
    check: Callable[[Mapping[str, Any]], dict[str, Any]]  # raises BadArguments
    run: Callable[[dict[str, Any], str], Awaitable[Any]]  # checked arguments, the attempt's id

    @property
    def schema(self) -> dict[str, Any]:
        """As OpenAI has it."""
        told = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": told}

    def called(self, name: str | None, description: str | None = None) -> Offer:
        """The same under the name and with the words that the configuration gives."""
        return replace(self, name=name or self.name, description=description or self.description)


def offer_of(
    name: str,
    target: Callable[..., Any],
    *,
    instance: Callable[[], Callable[..., Any]] | None = None,
    doc: str | None = None,
    description: str | None = None,
) -> Offer:
    """The offer of a typed callable; `instance` gives what is really called, where that is built later."""
    signature = Signature(name, target, doc=doc)
    described = description or signature.description
    if not described:
        raise UserError(
            f"tool {name!r} has no docstring; write one, it is what the policy is told about the tool"
        )

    async def run(arguments: dict[str, Any], attempt: str) -> Any:
        called = instance() if instance else target
        given = {**arguments, ATTEMPT: attempt} if signature.wants_attempt else arguments
        if _is_async(called):
            return await called(**given)
        result = await in_thread(name, functools.partial(called, **given))
        return await result if inspect.isawaitable(result) else result

    return Offer(name, described, signature.schema, signature.check, run)


def _is_async(target: Callable[..., Any]) -> bool:
    while isinstance(target, functools.partial):
        target = target.func
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(
        getattr(target, "__call__", None)  # noqa: B004 - an object whose call is a coroutine
    )
