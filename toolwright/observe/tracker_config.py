"""The settings of one tracker: those that every tracker has, and its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveFloat

from toolwright.failures import UserError
from toolwright.registry import check_settings, is_held, signature_of

COMMON = ("name", "notes", "attempts", "timeout_s")  # settings that every tracker has


@dataclass(frozen=True)
class TrackerConfig:
    label: str  # what the configuration calls it
    tracker: str  # a registered one, or path.py:name
    settings: dict[str, Any]  # its own
    name: str | None = None  # of the run, in this tracker
    notes: str = ""
    attempts: NonNegativeInt | Literal["all"] | None = None  # shown of each step; None: as the tracker has it
    timeout_s: PositiveFloat = (
        120.0  # the longest that one of its calls may take, and all that is left at the end
    )

    @property
    def file(self) -> str:
        """The label, fit for the name of a file."""
        return re.sub(r"\W", "_", self.label)


def read_trackers(trackers: Mapping[str, Any]) -> list[TrackerConfig]:
    """Check the settings of all trackers without importing them. Raises a UserError for settings that cannot
    work."""
    return [_read(tracker, settings) for tracker, settings in trackers.items()]


def _read(label: str, settings: Any) -> TrackerConfig:
    prefix, owner = f"trackers.{label}.", f"tracker {label!r}"
    if settings is not None and not isinstance(settings, Mapping):
        raise UserError(f"trackers.{label}: expected a block of settings, found {settings!r:.100}")
    own = dict(settings or {})
    tracker = str(own.pop("path", label))
    given = {key: own.pop(key) for key in COMMON if key in own}
    parameters = [p for p in signature_of(TrackerConfig).parameters.values() if p.name in COMMON]
    given = check_settings(owner, parameters, given, prefix=prefix)
    if ":" in tracker:
        return TrackerConfig(label, _located(tracker), own, **given)
    from toolwright.observe.trackers import TRACKERS

    entry = TRACKERS.get(tracker)
    taken = signature_of(entry.target).parameters.values()
    own = check_settings(owner, taken, own, prefix=prefix, others=COMMON)
    for package in sorted(entry.needs):
        if not _installed(package):
            raise UserError(
                f"trackers.{label} needs {package}, which is not installed: "
                "pip install 'toolwright[trackers]'"
            )
    return TrackerConfig(label, tracker, own, **given)


def _located(reference: str) -> str:
    """The reference with its file's whole path. The file is read in the tracker's process alone."""
    if is_held(reference):
        raise UserError("a tracker runs in a process of its own; name it as path.py:name")
    where, _, name = reference.rpartition(":")
    if not where.endswith(".py"):
        return reference
    path = Path(where).expanduser().resolve()
    if not path.is_file():
        raise UserError(f"trackers: no such file: {path}")
    return f"{path}:{name}"


def _installed(package: str) -> bool:
    try:
        found = find_spec(package)
    except ModuleNotFoundError:  # of the package that it lies in
        return False
    return found is not None and found.origin is not None  # a folder of that name is no package
