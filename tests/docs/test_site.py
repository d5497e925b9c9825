"""The site: every page in both languages, every link leads somewhere, and it builds without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, anchors, chinese_page, english_pages, links

OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/README.md")


def test_every_english_page_has_a_chinese_one() -> None:
    missing = [str(page.relative_to(DOCS)) for page in english_pages() if not chinese_page(page).exists()]
    assert not missing, f"write {missing} in Chinese beside it, as NAME.zh.md"


def test_no_chinese_page_is_without_its_english_one() -> None:
    assert {chinese_page(page) for page in english_pages()} >= set(DOCS.rglob("*.zh.md"))


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(
        r"^ +- ([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in english_pages())


@pytest.mark.parametrize(
    "page",
    [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in OUTSIDE)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: no such file"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{link}: no such heading; there are {sorted(anchors(target))}"


@pytest.mark.slow  # the tests above look for what breaks it most often
def test_the_site_builds_in_both_languages_without_a_warning(tmp_path: Path) -> None:
    """A warning is an error in strict mode: broken links and anchors, pages that cannot be read."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    for home in ("index.html", "zh/index.html"):
        text = (tmp_path / "site" / home).read_text(encoding="utf-8")
        assert "Toolwright" in text
        for loaded in ("fonts.googleapis", "unpkg.com", "jsdelivr", "cdnjs"):
            assert loaded not in text, f"{home} loads from {loaded}"
