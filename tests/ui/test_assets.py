"""The files of the page: what others wrote is what it says, and ours put no text in as markup."""

from __future__ import annotations

import hashlib
import re

import pytest

from tests.ui.vendored import FILES, FOLDER, VendoredFile
from toolwright.ui.assets import Assets

OURS = sorted(path for path in FOLDER.parent.rglob("*.js") if path.parent != FOLDER)
MARKUP = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_vendored_file_is_the_one_of_its_version(file: VendoredFile) -> None:
    assert hashlib.sha256((FOLDER / file.name).read_bytes()).hexdigest() == file.sha256


def test_every_vendored_file_is_named_and_has_its_licence() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {file.name for file in FILES}
    assert {file.package for file in FILES if file.path == "LICENSE"} == {file.package for file in FILES}


def test_no_text_becomes_markup_and_nothing_is_loaded_from_elsewhere() -> None:
    for path in OURS:
        text = path.read_text(encoding="utf-8")
        assert [word for word in MARKUP if word in text] == [], path
        assert re.findall(r"https?://", text) == [], path


def test_every_module_is_reached_from_the_page() -> None:
    page = (FOLDER.parents[1] / "index.html").read_text()
    imported = {
        (path.parent / name).resolve()
        for path in OURS
        for name in re.findall(r'from "(\.[^"]+)"', path.read_text(encoding="utf-8"))
    }
    assert [path.name for path in OURS if path not in imported and f"assets/{path.name}" not in page] == []


def test_the_page_names_every_module_so_that_none_waits_for_another() -> None:
    page = Assets().reply("index.html").body.decode()
    named = re.findall(r'(?:modulepreload" href|type="module" src)="([^"]+)"', page)
    scripts = {path.relative_to(FOLDER.parents[1]).as_posix() for path in FOLDER.parent.rglob("*.js")}
    assert set(named) == scripts - {"assets/theme.js"}  # that one is no module
