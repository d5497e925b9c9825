"""The tools of a run: their schemas for the policy, and an answer to every call."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolwright import images
from toolwright.failures import InfrastructureFailure, TaskFailure, UserError, nearest
from toolwright.tools.call import Caller, ToolRequest, ToolResult, Trouble
from toolwright.tools.entry import ToolEntry
from toolwright.tools.offer import BadArguments, Offer, ToolError, ToolTimeout
from toolwright.trajectory import Task, finite_number

log = logging.getLogger(__name__)

_LONGEST_NAME = 80  # characters of a name that the policy made up
_LONGEST_MESSAGE = 2000  # characters of a tool's exception
_MOST_TEXT = 1 << 20  # characters of a result; the policy sees far fewer
# Not answers: the code that runs the attempt handles them.
_FAILURES = (InfrastructureFailure, TaskFailure, UserError)


class Toolbox:
    """Built from configuration only. Tools are opened on first use, in the event loop that uses them."""

    def __init__(self, settings: Mapping[str, Mapping[str, Any]], *, timeout_s: float = 30.0) -> None:
        from toolwright.tools.settings import plain

        self._entries = [
            ToolEntry(label, own, timeout_s=timeout_s) for label, own in plain(settings, "tools").items()
        ]
        self._owners: dict[str, tuple[ToolEntry, Offer]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._logged: set[tuple[str, str]] = set()
        _unique([(entry, name) for entry in self._entries for name in entry.names])

    @property
    def names(self) -> list[str]:
        """Names of the tools. A server of several is here under its own name until it has listed them."""
        return [name for entry in self._entries for name in entry.names]

    async def schemas(self) -> list[dict[str, Any]]:
        """The schemas in OpenAI's form. Opens the servers that list their own tools."""
        return [offer.schema for _, offer in (await self._offers()).values()]

    async def call(self, call: ToolRequest, *, attempt: str, task: Task | None = None) -> ToolResult:
        """Answers a call. The policy's mistakes become text; failures that are not its fault are raised."""
        offers = await self._offers()
        if call.name not in offers:
            name = call.name[:_LONGEST_NAME]
            known = nearest(name, offers) if offers else "there are none"
            return _answer(f"there is no tool {name!r}; {known}", "unknown_tool")
        entry, offer = offers[call.name]
        if not isinstance(call.arguments, Mapping):
            return _answer(f"{offer.name}: the arguments must be an object with names", "arguments")
        try:
            arguments = offer.check(without_surrogates(call.arguments))
        except BadArguments as error:
            return _answer(f"{offer.name}: {error}", "arguments")
        except RecursionError:
            return _answer(f"{offer.name}: the arguments are nested too deeply", "arguments")
        return await self._run(entry, offer, arguments, Caller(attempt, task))

    async def end(self, attempt: str) -> None:
        """Closes what the tools keep for this attempt."""
        await asyncio.gather(*(entry.end(attempt) for entry in self._entries))

    async def close(self) -> None:
        await asyncio.gather(*(entry.close() for entry in self._entries))
        self._owners = None

    async def _offers(self) -> dict[str, tuple[ToolEntry, Offer]]:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError(
                    "a toolbox belongs to one event loop; build another from the same settings"
                )
            # The loop of the instances is gone, and their connections with it.
            if self._loop is not None:
                self._entries = [entry.reopened() for entry in self._entries]
            self._loop, self._owners = loop, None
        if self._owners is None:
            listed = await asyncio.gather(*(entry.offers() for entry in self._entries))
            pairs = [
                (entry, offer) for entry, own in zip(self._entries, listed, strict=True) for offer in own
            ]
            _unique([(entry, offer.name) for entry, offer in pairs])
            self._owners = {offer.name: (entry, offer) for entry, offer in pairs}
        return self._owners

    async def _run(
        self, entry: ToolEntry, offer: Offer, arguments: dict[str, Any], caller: Caller
    ) -> ToolResult:
        task = asyncio.ensure_future(_outcome(offer, arguments, caller))
        try:
            # Not asyncio.timeout: that waits for a tool that ignores its cancellation.
            await asyncio.wait({task}, timeout=None if entry.keeps_time else entry.limit_s)
        finally:
            if not task.done():
                task.cancel()
        if not task.done():
            return _answer(f"{offer.name} did not answer within {entry.limit_s:g} s", "timeout")
        result, error = task.result() if not task.cancelled() else (None, asyncio.CancelledError())
        if error is None:
            return _result(offer.name, result)
        if isinstance(error, _FAILURES):
            raise error
        if isinstance(error, ToolTimeout):
            return _answer(str(error), "timeout")
        if isinstance(error, ToolError):
            return _answer(str(error), "raised")
        self._log(offer.name, error)
        return _answer(f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE], "raised")

    def _log(self, name: str, error: BaseException) -> None:
        """Logs the traceback once for each place that raises, so that the log stays readable."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        key = (name, f"{type(error).__name__} {place}")
        if key not in self._logged:
            self._logged.add(key)
            log.warning("tool %s raised; the policy sees the message", name, exc_info=error)


async def _outcome(
    offer: Offer, arguments: dict[str, Any], caller: Caller
) -> tuple[Any, BaseException | None]:
    """The result, or the exception as a value: a task that raises SystemExit would end the loop."""
    try:
        return await offer.run(arguments, caller), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


def _result(name: str, result: Any) -> ToolResult:
    """Turn what a tool returned into a ToolResult: one of its own, message parts, or any value as text."""
    if isinstance(result, ToolResult):
        text, reward = result.text, _reward(name, result.reward)
        shown: Sequence[Any] = [images.part_of(url) for url in result.images]
    elif _is_image(result):
        text, reward, shown = "", None, [result]
    elif isinstance(result, list) and any(_is_image(part) for part in result):
        text, reward, shown = "", None, result
    else:
        return _answer(_text(result))
    try:
        parts = images.parts_of(shown, f"tool {name}", files=False) if shown else []
    except UserError as error:  # the tool's mistake, and no end of the run
        return _answer(str(error)[:_LONGEST_MESSAGE], "raised")
    text += "\n".join(part["text"] for part in parts if part["type"] == "text")
    answer = _answer(text, result.trouble if isinstance(result, ToolResult) else "", reward)
    urls = tuple(part[images.PART] for part in parts if part["type"] == images.PART)
    return replace(answer, images=urls, sandbox=getattr(result, "sandbox", None))


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == images.PART


def _text(result: Any) -> str:
    if isinstance(result, str):
        return result
    if result is None:
        return "(no result)"
    if isinstance(result, bytes):
        return result[: 4 * _MOST_TEXT].decode(errors="replace")
    if hasattr(result, "model_dump"):
        result = result.model_dump(mode="json")
    if not isinstance(result, Mapping | list | tuple | int | float):
        result = _plain(result)
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError, RecursionError):
        return str(result)


def _plain(value: Any) -> Any:
    """The number that a scalar of numpy or torch is; anything else as text."""
    return value.item() if getattr(value, "shape", None) == () else str(value)


def _reward(name: str, reward: Any) -> float | None:
    """Check a reward: None or a finite number."""
    if reward is None or (number := finite_number(reward)) is not None:
        return None if reward is None else number
    raise TaskFailure(f"tool {name!r} gave the reward {reward!r:.200}, which is not a finite number")


def _answer(text: str, trouble: Trouble = "", reward: float | None = None) -> ToolResult:
    """A result of limited size: many attempts hold results, and they are copied on the way."""
    if len(text) > _MOST_TEXT:
        half, length = _MOST_TEXT // 2, len(text)
        text = f"{text[:half]}\n… {length:,} characters, the middle left out …\n{text[-half:]}"
    return ToolResult(without_surrogates(text), trouble, reward)


def without_surrogates(value: Any) -> Any:
    """Replaces lone surrogates, which JSON can carry and UTF-8 cannot: one in a request would break the
    connection that attempts share, one in an answer the tokenizer.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    return value


def _unique(names: list[tuple[ToolEntry, str]]) -> None:
    owners: dict[str, ToolEntry] = {}
    for entry, name in names:
        if name in owners:
            raise UserError(
                f"two tools are called {name!r}: tools.{owners[name].label} and tools.{entry.label}; "
                f"give one of them another `name`, or a server a `prefix`"
            )
        owners[name] = entry
