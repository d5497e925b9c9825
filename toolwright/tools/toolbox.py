"""The tools of a run: what the policy is told of them, and its calls answered whatever it asks for."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import Mapping
from typing import Any

from toolwright.failures import InfrastructureFailure, TaskFailure, UserError, nearest
from toolwright.tools.call import ToolRequest, ToolResult, Trouble
from toolwright.tools.entry import ToolEntry
from toolwright.tools.offer import Offer, ToolError, ToolTimeout
from toolwright.tools.signature import BadArguments

log = logging.getLogger(__name__)

_NAME_SHOWN = 80  # of a name that the policy made up
_MESSAGE_SHOWN = 2000  # of what a tool's exception says
_MOST_TEXT = 1 << 20  # characters of a result; what the policy is shown of it is far less
_OURS = (InfrastructureFailure, TaskFailure, UserError)  # not answers: sorted by whoever runs the attempt


class Toolbox:
    """Made from configuration alone; what it names is opened on first use, in the event loop that uses it."""

    def __init__(self, settings: Mapping[str, Mapping[str, Any]], *, timeout_s: float = 30.0) -> None:
        from toolwright.tools.settings import plain

        self._kits = [
            ToolEntry(label, own, timeout_s=timeout_s) for label, own in plain(settings, "tools").items()
        ]
        self._owners: dict[str, tuple[ToolEntry, Offer]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told: set[tuple[str, str]] = set()
        _unique([(kit, name) for kit in self._kits for name in kit.names])

    @property
    def names(self) -> list[str]:
        """What can be called; a server of several stands here by its own name until it has been asked."""
        return [name for kit in self._kits for name in kit.names]

    async def schemas(self) -> list[dict[str, Any]]:
        """As OpenAI has them; opens the servers that list their own tools."""
        return [offer.schema for _, offer in (await self._offers()).values()]

    async def call(self, call: ToolRequest, *, attempt: str) -> ToolResult:
        """Whatever the policy did is answered in words. Raises only what is not the policy's doing."""
        offers = await self._offers()
        if call.name not in offers:
            name = call.name[:_NAME_SHOWN]
            known = nearest(name, offers) if offers else "there are none"
            return _answer(f"there is no tool {name!r}; {known}", "unknown_tool")
        kit, offer = offers[call.name]
        if not isinstance(call.arguments, Mapping):
            return _answer(f"{offer.name}: the arguments must be an object with names", "arguments")
        try:
            arguments = offer.check(_whole(call.arguments))
        except BadArguments as error:
            return _answer(f"{offer.name}: {error}", "arguments")
        except RecursionError:
            return _answer(f"{offer.name}: the arguments are nested too deeply", "arguments")
        return await self._run(kit, offer, arguments, attempt)

    async def end(self, attempt: str) -> None:
        """Closes what belongs to this attempt."""
        await asyncio.gather(*(kit.end(attempt) for kit in self._kits))

    async def close(self) -> None:
        await asyncio.gather(*(kit.close() for kit in self._kits))
        self._owners = None

    async def _offers(self) -> dict[str, tuple[ToolEntry, Offer]]:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError(
                    "a toolbox belongs to one event loop; build another from the same settings"
                )
            # The loop that the instances were built in is gone, and their connections with it.
            self._kits = [kit.anew() for kit in self._kits] if self._loop is not None else self._kits
            self._loop, self._owners = loop, None
        if self._owners is None:
            listed = await asyncio.gather(*(kit.offers() for kit in self._kits))
            pairs = [(kit, offer) for kit, own in zip(self._kits, listed, strict=True) for offer in own]
            _unique([(kit, offer.name) for kit, offer in pairs])
            self._owners = {offer.name: (kit, offer) for kit, offer in pairs}
        return self._owners

    async def _run(self, kit: ToolEntry, offer: Offer, arguments: dict[str, Any], attempt: str) -> ToolResult:
        task = asyncio.ensure_future(_settled(offer, arguments, attempt))
        try:
            # Not asyncio.timeout: that waits for the end of a tool that does not let itself be cancelled.
            await asyncio.wait({task}, timeout=None if kit.keeps_time else kit.limit_s)
        finally:
            if not task.done():
                task.cancel()
        if not task.done():
            return _answer(f"{offer.name} did not answer within {kit.limit_s:g} s", "timeout")
        result, error = task.result() if not task.cancelled() else (None, asyncio.CancelledError())
        if error is None:
            return _answer(_text(result))
        if isinstance(error, _OURS):
            raise error
        if isinstance(error, ToolTimeout):
            return _answer(str(error), "timeout")
        if isinstance(error, ToolError):
            return _answer(str(error), "raised")
        self._log(offer.name, error)
        return _answer(f"{type(error).__name__}: {error}"[:_MESSAGE_SHOWN], "raised")

    def _log(self, name: str, error: BaseException) -> None:
        """The traceback once for each place that raises, so that a bug is seen and a log can be read."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        key = (name, f"{type(error).__name__} {place}")
        if key not in self._told:
            self._told.add(key)
            log.warning("tool %s raised; the policy is told so", name, exc_info=error)


async def _settled(offer: Offer, arguments: dict[str, Any], attempt: str) -> tuple[Any, BaseException | None]:
    """The result or the exception, as a value: a task that ends with SystemExit would end the loop."""
    try:
        return await offer.run(arguments, attempt), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


def _text(result: Any) -> str:
    if isinstance(result, str):
        return result
    if result is None:
        return "(no result)"
    if isinstance(result, bytes):
        return result[: 4 * _MOST_TEXT].decode(errors="replace")
    if hasattr(result, "model_dump"):
        result = result.model_dump(mode="json")
    try:
        return json.dumps(result, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(result)


def _answer(text: str, trouble: Trouble = "") -> ToolResult:
    """Cut first: a result of any size is held by as many attempts as there are, and copied on the way."""
    if len(text) > _MOST_TEXT:
        half, length = _MOST_TEXT // 2, len(text)
        text = f"{text[:half]}\n… {length:,} characters, the middle left out …\n{text[-half:]}"
    return ToolResult(_whole(text), trouble)


def _whole(value: Any) -> Any:
    """Without halves of surrogate pairs, which JSON can carry and UTF-8 cannot: one in a request breaks the
    connection that other attempts share, one in an answer the tokenizer.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_whole(key): _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return value


def _unique(names: list[tuple[ToolEntry, str]]) -> None:
    owners: dict[str, ToolEntry] = {}
    for kit, name in names:
        if name in owners:
            raise UserError(
                f"two tools are called {name!r}: tools.{owners[name].label} and tools.{kit.label}; "
                f"give one of them another `name`, or a server a `prefix`"
            )
        owners[name] = kit
