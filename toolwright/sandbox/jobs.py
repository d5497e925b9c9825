"""From a request to the job that a worker takes."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from toolwright.sandbox.languages import BINARY, Language
from toolwright.sandbox.limits import RunLimits
from toolwright.sandbox.recipe import LIGHT, LOADED, TOOLS
from toolwright.sandbox.requests import Base64

_REPORT_BYTES = 4096  # of a checker on one check


class BadRequest(ValueError):
    """The request asks for what no run may have; said to the caller as it is."""


class Jobs:
    """Writes jobs under one server's limits."""

    def __init__(self, limits: RunLimits, preloaded: tuple[str, ...], *, limited: bool) -> None:
        self._limits = limits
        self._limited = limited
        names = "|".join(re.escape(name) for name in preloaded)
        self._mentions = re.compile(rf"\b(?:{names})\b") if names else None

    def python(self, code: str, **wishes: Any) -> dict[str, Any]:
        """Code that names a preloaded package runs where it is loaded; other code starts from less memory."""
        loaded = self._mentions is not None and self._mentions.search(code) is not None
        return self._job(code=code, kind=LOADED if loaded else LIGHT, **wishes)

    def trial(
        self, code: str, checks: list[str], *, setup: str, entry_point: str, **wishes: Any
    ) -> dict[str, Any]:
        """A solution, and a checker that calls it: two jobs for one worker."""
        solution = {**self.python(code, **wishes), "linked": True}
        checker = self.python(
            "\n".join((setup, *checks)),
            timeout_s=wishes.get("timeout_s"),
            output_bytes=_REPORT_BYTES * (1 + len(checks)),
        )
        checker |= {"linked": True, "code": "", "checks": checks, "setup": setup, "entry_point": entry_point}
        return {"solution": solution, "checker": checker, "timeout_s": solution["timeout_s"]}

    def session(self, **wishes: Any) -> dict[str, Any]:
        return self._job(kind=LOADED if self._mentions else LIGHT, session=True, **wishes)

    def cell(self, code: str, timeout_s: float | None) -> dict[str, Any]:
        return {"code": code, "timeout_s": self._timeout(timeout_s)}

    def script(self, language: Language, tool: str, code: str, **wishes: Any) -> dict[str, Any]:
        files = {**wishes.pop("files", {}), language.source: code}
        argv = [tool, *language.command]
        return self._job(
            kind=TOOLS, argv=argv, files=files, limit_address_space=language.limit_address_space, **wishes
        )

    def binary(self, program: str, **wishes: Any) -> dict[str, Any]:
        """Runs what a compiler made, given in base64."""
        files = {**wishes.pop("files", {}), BINARY: Base64.model_construct(base64=program)}
        return self._job(kind=TOOLS, argv=[f"./{BINARY}"], executable=BINARY, files=files, **wishes)

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

    def _timeout(self, wished: float | None) -> float:
        most = self._limits.timeout_max_s
        if wished is not None and wished > most:
            raise BadRequest(f"timeout_s is {wished:g}, more than the {most:g} allowed here")
        return self._limits.timeout_s if wished is None else wished


def _encoded(content: str | Base64) -> str:
    if isinstance(content, Base64):
        try:
            base64.b64decode(content.base64, validate=True)
        except ValueError:
            raise BadRequest("the content of a file is not valid base64") from None
        return content.base64
    return base64.b64encode(content.encode()).decode()
