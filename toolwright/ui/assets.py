"""The built front end, as it lies in the package. Only files that were there at the start are served."""

from __future__ import annotations

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
_APART = ("assets/app.js", "assets/theme.js")  # scripts that the page itself names
FOREVER, NEVER = b"public, max-age=31536000, immutable", b"no-cache"


class Assets:
    """Files by their path from the folder."""

    def __init__(self, folder: Path = FOLDER) -> None:
        files = (path for path in folder.rglob("*") if path.is_file() and path.suffix in TYPES)
        self._files = {path.relative_to(folder).as_posix(): path for path in files}
        scripts = sorted(name for name in self._files if name.endswith(".js") and name not in _APART)
        self._preloads = "".join(f'<link rel="modulepreload" href="{name}">' for name in scripts).encode()

    def reply(self, name: str) -> HttpReply:
        """The page itself names all modules, so that a browser need not find them import by import."""
        path = self._files.get(name)
        if path is None:
            raise PageProblem(404, "there is nothing at this address")
        body = path.read_bytes()
        if name == "index.html":
            body = body.replace(b"</head>", self._preloads + b"</head>")
        lasting = FOREVER if _HASHED.search(name) else NEVER
        return HttpReply(body, content_type=TYPES[path.suffix], headers=[(b"cache-control", lasting)])
