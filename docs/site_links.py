"""Brings the repository's files that pages link to into the site; mkdocs.yml names this as a hook.

A page links to `../examples/notebook.ipynb` so that the link works in the repository. The site has that file
as `repository/examples/notebook.ipynb`, and shows a folder by its README.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
COPIES = "repository/"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|/|#)([^)#\s]+)")


@event_priority(-100)  # once the languages have divided the pages among themselves
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file outside docs/ that a page links to, and what those link to."""
    pages = [file.src_uri for file in files.documentation_pages()]
    while pages:
        page = pages.pop()
        for target in LINK.findall((ROOT / place(page)).read_text(encoding="utf-8")):
            uri = site_uri(page, target)
            if uri is None or not uri.startswith(COPIES) or uri in files.src_uris:
                continue
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / place(uri))))
            if uri.endswith(".md"):
                pages.append(uri)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave docs/ at the copies, and links of the copies back into docs/."""

    def moved(link: re.Match[str]) -> str:
        uri = site_uri(page.file.src_uri, link[1])
        crosses = uri is not None and COPIES in f"{uri} {page.file.src_uri}"
        return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri)) if uri and crosses else link[1]

    return LINK.sub(moved, markdown)


def place(uri: str) -> str:
    """Where a file of the site lies in the repository."""
    return uri.removeprefix(COPIES) if uri.startswith(COPIES) else f"docs/{uri}"


def site_uri(page: str, target: str) -> str | None:
    """The file of the site that a page's link names; None if the repository has no such file."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(place(page)), target))
    if (ROOT / path).is_dir():
        path += "/README.md"
    if path.startswith("..") or not (ROOT / path).is_file():
        return None
    return path.removeprefix("docs/") if path.startswith("docs/") else COPIES + path
