"""The requirements of installed packages, read from their metadata. Nothing is imported."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

OWN = "toolwright"


def installed(name: str) -> str | None:
    """The version of a package; None if it is not there, or its metadata has none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def required_by(name: str, *, extras: bool = False) -> Iterator[Requirement]:
    """Yield the requirements of a package on this system; with `extras`, those of its extras too."""
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return
    provided = metadata.metadata(name).get_all("Provides-Extra") or [] if extras else []
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:  # metadata of old packages
            continue
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *provided)):
            yield requirement


def needed(name: str) -> Requirement | None:
    """Find the requirement that Toolwright, or one of its extras, states for a package."""
    same = (r for r in required_by(OWN, extras=True) if canonicalize_name(r.name) == canonicalize_name(name))
    return next((r for r in same if canonicalize_name(r.name) != OWN), None)


def conflicts(*roots: str) -> list[str]:
    """Every requirement of these packages, and of what they require, that is not met."""
    found, seen, left = [], set(), list(roots)
    while left:
        name = left.pop(0)
        if name in seen or installed(name) is None:
            continue
        seen.add(name)
        for requirement in required_by(name):
            version = installed(requirement.name)
            if version is None:
                found.append(f"{name} needs {requirement.name}, which is missing")
            elif not requirement.specifier.contains(version, prereleases=True):
                found.append(
                    f"{name} needs {requirement.name}{requirement.specifier}, and {version} is there"
                )
            left.append(canonicalize_name(requirement.name))
    return found
