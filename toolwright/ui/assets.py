"""The built front end, as it lies in the package. Only files that were there at the start are served."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path

from toolwright.ui.problem import PageProblem
from toolwright.web.asgi import HttpReply

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
    ".ico": b"image/x-icon",
    ".woff2": b"font/woff2",
    ".json": b"application/json",
    ".txt": b"text/plain; charset=utf-8",
}
_HASHED = re.compile(r"[-.][0-9A-Za-z_-]{8,}\.\w+$")  # a name that changes with what the file holds
_IMPORT = re.compile(r'from ?"(\.[^"]+)"')
_START, _VIEWS = "assets/app.js", "assets/views/"
_PLACE = b"<!-- modules -->"  # in index.html
FOREVER, NEVER = b"public, max-age=31536000, immutable", b"no-cache"


class Assets:
    """Files by their path from the folder."""

    def __init__(self, folder: Path = FOLDER) -> None:
        files = (path for path in folder.rglob("*") if path.is_file() and path.suffix in TYPES)
        self._files = {path.relative_to(folder).as_posix(): path for path in files}
        self._modules = self._name_modules().encode()

    def _name_modules(self) -> str:
        """Name the modules that every view needs, and for each view those that it needs besides."""
        if _START not in self._files:
            return ""
        start = self._imported(_START)
        names = [name for name in sorted(self._files) if name.startswith(_VIEWS)]
        views = {Path(name).stem: sorted(self._imported(name) - start) for name in names}
        links = "".join(f'<link rel="modulepreload" href="{name}">' for name in sorted(start))
        return f"{links}<meta name=\"view-modules\" content='{json.dumps(views)}'>"

    def _imported(self, name: str) -> set[str]:
        """The module itself and all that it imports."""
        found, waiting = set[str](), [name]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                folder = posixpath.dirname(name)
                imports = _IMPORT.findall(self._files[name].read_text(encoding="utf-8"))
                waiting += [posixpath.normpath(f"{folder}/{path}") for path in imports]
        return found

    def reply(self, name: str) -> HttpReply:
        """Return a file. The page names the modules of its view, which a browser would find one by one."""
        path = self._files.get(name)
        if path is None:
            raise PageProblem(404, "there is nothing at this address")
        body = path.read_bytes()
        if name == "index.html":
            body = body.replace(_PLACE, self._modules)
        lasting = FOREVER if _HASHED.search(name) else NEVER
        return HttpReply(body, content_type=TYPES[path.suffix], headers=[(b"cache-control", lasting)])
