"""The pages of the documentation, and the Chinese one of each."""

from __future__ import annotations

import re
from pathlib import Path

from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CHINESE = ".zh.md"
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?![a-z]+:)([^)\s]*)\)")
IMAGE = re.compile(r'<img [^>]*src="(?![a-z]+:)([^"]+)"')


def english_pages() -> list[Path]:
    return sorted(page for page in DOCS.rglob("*.md") if not page.name.endswith(CHINESE))


def chinese_page(page: Path) -> Path:
    return page.with_name(page.stem + CHINESE)


def prose(page: Path) -> str:
    """The text of a page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """The targets of a page's links and pictures within the repository."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return LINK.findall(text) + IMAGE.findall(text)


def anchors(page: Path) -> set[str]:
    """What `#…` can name on a page."""
    slug = slugify(case="lower")
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", prose(page), re.MULTILINE):
        own = re.search(r"\{ *#([\w-]+) *\}$", heading)
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        name = own[1] if own else slug(plain, "-")
        number = 0
        while name in found:
            number += 1
            name = f"{slug(plain, '-')}_{number}"
        found.add(name)
    return found
