"""Turns requests into jobs for workers, in the languages that this machine can run."""

from __future__ import annotations

import base64
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolwright.failures import nearest
from toolwright.sandbox.limits import RunLimits
from toolwright.sandbox.requests import BadRequest, Base64
from toolwright.sandbox.worker_main import LIGHT, LOADED, TOOLS

_REPORT_BYTES = 4096  # for each check
_LIFE_S = 10 * 24 * 3600.0  # of a session, in processor time: each of its cells has a timeout of its own


class Jobs:
    """Writes jobs under one server's limits."""

    def __init__(self, limits: RunLimits, preloaded: tuple[str, ...], *, limited: bool) -> None:
        self._limits = limits
        self._limited = limited
        names = "|".join(re.escape(name) for name in preloaded)
        self._mentions = re.compile(rf"\b(?:{names})\b") if names else None

    def python(self, code: str, **options: Any) -> dict[str, Any]:
        """A Python run. Code that names a preloaded package is forked from a zygote that has it."""
        loaded = self._mentions is not None and self._mentions.search(code) is not None
        return self._job(code=code, kind=LOADED if loaded else LIGHT, **options)

    def checked(
        self, code: str, checks: list[str], *, setup: str, entry_point: str, **options: Any
    ) -> dict[str, Any]:
        """A solution and a checker that calls it: two jobs for one worker."""
        solution = {**self.python(code, **options), "linked": True}
        checker = self.python(
            "\n".join((setup, *checks)),
            timeout_s=options.get("timeout_s"),
            output_bytes=_REPORT_BYTES * (1 + len(checks)),
        )
        checker |= {"linked": True, "code": "", "checks": checks, "setup": setup, "entry_point": entry_point}
        return {"solution": solution, "checker": checker, "timeout_s": solution["timeout_s"]}

    def session(self, **options: Any) -> dict[str, Any]:
        job = self._job(kind=LOADED if self._mentions else LIGHT, session=True, **options)
        return {**job, "timeout_s": _LIFE_S}

    def cell(self, code: str, timeout_s: float | None) -> dict[str, Any]:
        return {"code": code, "timeout_s": self._timeout(timeout_s)}

    def script(self, language: Language, tool: str, code: str, **options: Any) -> dict[str, Any]:
        files = {**options.pop("files", {}), language.source: code}
        argv = [tool, *language.command]
        return self._job(
            kind=TOOLS, argv=argv, files=files, limit_address_space=language.limit_address_space, **options
        )

    def binary(self, program: str, **options: Any) -> dict[str, Any]:
        """A run of a compiled program, given in base64."""
        files = {**options.pop("files", {}), BINARY: Base64.model_construct(base64=program)}
        return self._job(kind=TOOLS, argv=[f"./{BINARY}"], executable=BINARY, files=files, **options)

    def _job(
        self,
        *,
        kind: str,
        code: str = "",
        stdin: str = "",
        timeout_s: float | None = None,
        memory_mb: int | None = None,
        files: Mapping[str, str | Base64] | None = None,
        fetch: list[str] | None = None,
        argv: list[str] | None = None,
        executable: str = "",
        session: bool = False,
        limit_address_space: bool = True,
        output_bytes: int | None = None,
    ) -> dict[str, Any]:
        limits = self._limits
        timeout_s = self._timeout(timeout_s)
        memory_mb = limits.memory_mb if memory_mb is None else memory_mb
        if memory_mb > limits.memory_max_mb:
            raise BadRequest(f"memory_mb is {memory_mb}, more than the {limits.memory_max_mb} allowed here")
        return {
            "kind": kind,
            "code": code,
            "stdin": stdin,
            "timeout_s": timeout_s,
            "memory_bytes": memory_mb << 20,
            "files": {name: _encoded(content) for name, content in files.items()} if files else {},
            "fetch": fetch or [],
            "argv": argv or [],
            "executable": executable,
            "session": session,
            "limited": self._limited,
            "limit_address_space": limit_address_space,
            "output_bytes": output_bytes or limits.output_kb << 10,
            "flood_bytes": limits.flood_mb << 20,
            "descriptors": limits.descriptors,
            "fetch_bytes": limits.fetch_mb << 20,
        }

    def _timeout(self, requested: float | None) -> float:
        most = self._limits.timeout_max_s
        if requested is not None and requested > most:
            raise BadRequest(f"timeout_s is {requested:g}, more than the {most:g} allowed here")
        return self._limits.timeout_s if requested is None else requested


def _encoded(content: str | Base64) -> str:
    if isinstance(content, Base64):
        try:
            base64.b64decode(content.base64, validate=True)
        except ValueError:
            raise BadRequest("the content of a file is not valid base64") from None
        return content.base64
    return base64.b64encode(content.encode()).decode()


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
