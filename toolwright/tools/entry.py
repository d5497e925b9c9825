"""One entry of the configuration: a function, a class, or a server of several tools, built on first use."""

from __future__ import annotations

import asyncio
import inspect
import logging
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from toolwright.failures import InfrastructureFailure, UserError, nearest
from toolwright.registry import Entry, check_settings, signature_of
from toolwright.tools import TOOLS
from toolwright.tools.offer import Offer, offer_of

log = logging.getLogger(__name__)

# Settings that every entry may have.
COMMON = {
    "path": str,  # path.py:name, package.module:name, or a registered name if the entry has another
    "name": str,  # what the policy calls it
    "description": str,  # in place of the docstring
    "timeout_s": float,  # the longest one call may take
}
_CLOSING_S = 10.0


class ToolEntry:
    """Checks its settings when created, opens on first use, and is closed by its user."""

    def __init__(self, label: str, settings: Mapping[str, Any], *, timeout_s: float) -> None:
        self.label = label
        self._arguments = (settings, timeout_s)
        common = {key: _common(label, key, settings[key]) for key in COMMON if settings.get(key) is not None}
        self._entry = _entry(label, common.get("path", label))
        self._name, self._description = common.get("name"), common.get("description")
        self.limit_s: float = common.get("timeout_s", timeout_s)
        own = {key: value for key, value in settings.items() if key not in COMMON}
        common_settings = {"name": self._name or label, "timeout_s": self.limit_s}
        self._settings = _checked(label, self._entry, own, common=common_settings)
        self._instance: Any = None
        self._opening = asyncio.Lock()
        target = self._entry.target
        self._several = isinstance(target, type) and hasattr(target, "tools")
        self._offers: list[Offer] | None = None if self._several else [self._single()]

    def reopened(self) -> ToolEntry:
        """The same entry, not yet opened."""
        settings, timeout_s = self._arguments
        return ToolEntry(self.label, settings, timeout_s=timeout_s)

    @property
    def keeps_time(self) -> bool:
        """True if the tool ends its calls in time by itself, and tells the policy's faults from a
        server's."""
        return bool(getattr(self._entry.target, "keeps_time", False))

    @property
    def names(self) -> list[str]:
        """Names that the policy may call. A server of several is asked for them later."""
        return [self._name or self.label] if self._offers is None else [one.name for one in self._offers]

    async def offers(self) -> list[Offer]:
        """Everything that the policy can call; asks a server for its list."""
        async with self._opening:
            if self._offers is None:
                offered = await self._built().tools()
                self._offers = [
                    one if isinstance(one, Offer) else offer_of(one.__name__, one) for one in offered
                ]
            return self._offers

    async def end(self, attempt: str) -> None:
        """Closes what the instance keeps for one attempt."""
        if self._instance is not None and hasattr(self._instance, "end"):
            await self._close_quietly("end", partial(self._instance.end, attempt))

    async def close(self) -> None:
        instance, self._instance = self._instance, None
        if self._several:
            self._offers = None
        if instance is not None and hasattr(instance, "close"):
            await self._close_quietly("close", instance.close)

    async def _close_quietly(self, what: str, call: Callable[[], Any]) -> None:
        """Calls a closing method. An error there is logged and fails nobody."""
        try:
            ending = call()
            if inspect.isawaitable(ending):
                async with asyncio.timeout(_CLOSING_S):
                    await ending
        except TimeoutError:
            log.warning("tool %s: %s() took longer than %g s and was abandoned", self.label, what, _CLOSING_S)
        except Exception as error:
            log.warning("tool %s: %s() failed: %s: %s", self.label, what, type(error).__name__, error)

    def _single(self) -> Offer:
        target = self._entry.target
        name = self._name or self.label
        if not isinstance(target, type):
            return offer_of(name, target, description=self._description)
        if "__call__" not in dir(target):
            raise UserError(
                f"tool {self.label!r}: the class {target.__name__} has neither __call__ nor tools()"
            )
        call = types.MethodType(target.__call__, target)  # bound, so that `self` is not a parameter
        return offer_of(
            name, call, instance=self._built, doc=target.__doc__ or "", description=self._description
        )

    def _built(self) -> Any:
        """The instance, created in the running loop: it may hold sessions and locks of that loop."""
        if self._instance is None:
            try:
                self._instance = self._entry.target(**self._settings)
            except (UserError, InfrastructureFailure):
                raise
            except Exception as error:
                log.exception("tool %s cannot be built", self.label)
                raise UserError(
                    f"tool {self.label!r} cannot be built: {type(error).__name__}: {error}"
                ) from error
        return self._instance


def _entry(label: str, path: str) -> Entry[Callable[..., Any]]:
    if ":" not in path and path not in TOOLS.names():
        raise UserError(
            f"unknown tool {path!r}; {nearest(path, TOOLS.names())} "
            f"(for a tool of your own, set tools.{label}.path=my_tools.py:name)"
        )
    return TOOLS.get(path)


def _common(label: str, key: str, value: Any) -> Any:
    if COMMON[key] is float and isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    if COMMON[key] is str and isinstance(value, str) and value:
        return value
    expected = "a positive number of seconds" if COMMON[key] is float else "text"
    raise UserError(f"tools.{label}.{key}={value!r}: expected {expected}")


def _checked(
    label: str, entry: Entry[Callable[..., Any]], settings: Mapping[str, Any], *, common: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings against the class's own signature: known names, the types and ranges it declares.

    A class gets those of the `common` settings that it declares.
    """
    parameters = _parameters(entry.target) if isinstance(entry.target, type) else []
    own = {p.name for p in parameters}
    checked = check_settings(
        f"tool {label!r}",
        parameters,
        {**{key: value for key, value in common.items() if key in own}, **settings},
        prefix=f"tools.{label}.",
        others=COMMON,
    )
    if hasattr(entry.target, "check_settings"):
        try:
            entry.target.check_settings(**checked)
        except UserError as error:
            raise UserError(f"tools.{label}: {error}") from None
    return checked


def _parameters(target: type) -> list[inspect.Parameter]:
    """Parameters of the class, and of base classes that get its `**settings`."""
    found: dict[str, inspect.Parameter] = {}
    inits = [vars(kind)["__init__"] for kind in target.__mro__[:-1] if "__init__" in vars(kind)]
    for init in inits:
        own = list(signature_of(init).parameters.values())[1:]
        found = {**{p.name: p for p in own if p.kind is not p.VAR_KEYWORD}, **found}
        if not any(p.kind is p.VAR_KEYWORD for p in own):
            return list(found.values())
    rest = inspect.Parameter("settings", inspect.Parameter.VAR_KEYWORD)
    return [*found.values(), *([rest] if inits else [])]
