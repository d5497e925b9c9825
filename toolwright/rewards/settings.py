"""Checks the settings of a scorer against its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from toolwright.failures import UserError, nearest
from toolwright.registry import converted, signature_of


def checked(
    name: str, target: Callable[..., Any], settings: Mapping[str, Any], *, reserved: Collection[str]
) -> dict[str, Any]:
    """The settings with the types of the signature. `reserved` are arguments that the user cannot set."""
    parameters = signature_of(target).parameters.values()
    known = {p.name: p for p in parameters if p.name not in reserved and p.kind not in _OPEN}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    checked = {}
    for key, value in settings.items():
        if key in reserved:
            raise UserError(f"reward.params.{name}.{key} is set by the run, not by reward.params")
        if key not in known and not open_ended:
            hint = nearest(key, known) if known else "it takes none"
            raise UserError(f"scorer {name!r} has no setting reward.params.{name}.{key}; {hint}")
        annotation = known[key].annotation if key in known else inspect.Parameter.empty
        checked[key] = converted(f"reward.params.{name}.{key}", annotation, value)
    missing = [key for key, p in known.items() if p.default is p.empty and key not in checked]
    if missing:
        raise UserError(f"scorer {name!r} needs reward.params.{name}.{missing[0]}")
    return checked


_OPEN = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
