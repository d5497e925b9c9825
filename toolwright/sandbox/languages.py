"""The languages that a server can run: Python always, others if their tools are installed."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from toolwright.failures import nearest
from toolwright.sandbox.requests import BadRequest


@dataclass(frozen=True)
class Language:
    """A language: how source text becomes a process."""

    name: str
    tools: tuple[str, ...]
    source: str
    command: tuple[str, ...]
    compiled: bool = False
    # V8 reserves more addresses than any limit on them would allow.
    limit_address_space: bool = True


PYTHON = "python"
BINARY = "program"
_ALL = (
    Language(
        "cpp", ("g++", "clang++"), "main.cpp", ("-O2", "-std=c++17", "-o", BINARY, "main.cpp"), compiled=True
    ),
    Language("bash", ("bash",), "main.sh", ("main.sh",)),
    Language("javascript", ("node", "nodejs"), "main.js", ("main.js",), limit_address_space=False),
)
_ALIASES = {
    "py": PYTHON, "python3": PYTHON, "c++": "cpp", "g++": "cpp", "sh": "bash", "shell": "bash",
    "js": "javascript", "node": "javascript", "nodejs": "javascript",
}  # fmt: skip


class Languages:
    """The languages of this machine, looked up once."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}
        for language in _ALL:
            found = (shutil.which(tool, path="/usr/local/bin:/usr/bin:/bin") for tool in language.tools)
            path = next((path for path in found if path), None)
            if path is not None:
                self._paths[language.name] = path
        self._known = {language.name: language for language in _ALL}

    @property
    def tools(self) -> list[str]:
        return sorted(self._paths.values())

    def status(self) -> dict[str, str]:
        """Every language with its tool, or with what is missing."""
        missing = {
            name: f"not installed: none of {', '.join(language.tools)} found"
            for name, language in self._known.items()
            if name not in self._paths
        }
        return {
            PYTHON: "warm",
            **{name: os.path.basename(path) for name, path in self._paths.items()},
            **missing,
        }

    def find(self, name: str) -> tuple[Language | None, str]:
        """The language and the path of its tool; None for Python, which needs no tool."""
        plain = _ALIASES.get(name.lower(), name.lower())
        if plain == PYTHON:
            return None, ""
        if plain not in self._known:
            raise BadRequest(f"no language is called {name!r}; {nearest(plain, [PYTHON, *self._known])}")
        if plain not in self._paths:
            tools = " or ".join(self._known[plain].tools)
            raise BadRequest(f"{plain} needs {tools}, which this server does not have installed")
        return self._known[plain], self._paths[plain]
