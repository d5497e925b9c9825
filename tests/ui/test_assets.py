"""The files of the page: what others wrote is what it says, and ours put no text in as markup."""

from __future__ import annotations

import hashlib
import json
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
    start, views = named_modules()
    reached = start.union(*views.values())
    scripts = {path.relative_to(FOLDER.parents[1]).as_posix() for path in FOLDER.parent.rglob("*.js")}
    assert reached == scripts - {"assets/early.js"}  # that one is no module


def test_the_page_names_the_modules_of_its_view_so_that_none_waits_for_another() -> None:
    start, views = named_modules()
    for name, besides in views.items():
        known = start | besides
        for module in known:
            path = FOLDER.parents[1] / module
            for imported in re.findall(r'from ?"(\.[^"]+)"', path.read_text(encoding="utf-8")):
                there = (path.parent / imported).resolve().relative_to(FOLDER.parents[1].resolve())
                assert there.as_posix() in known, f"{name} needs {there}"


def test_every_view_has_a_module_and_every_module_of_a_view_a_line() -> None:
    listed = re.findall(r'\{ name: "(\w+)"', (FOLDER.parent / "views.js").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(named_modules()[1])


@pytest.mark.parametrize("view", ["runs", "attempts", "attempt"])
def test_a_view_without_charts_loads_no_chart_library(view: str) -> None:
    start, views = named_modules()
    assert "assets/vendor/uPlot.js" not in start | views[view]
    assert len(start | views[view]) < 20


def named_modules() -> tuple[set[str], dict[str, set[str]]]:
    """The modules that the page names for every view, and those of each view."""
    page = Assets().reply("index.html").body.decode()
    start = set(re.findall(r'modulepreload" href="([^"]+)"', page))
    content = re.findall(r"name=\"view-modules\" content='([^']+)'", page)[0]
    return start, {name: set(modules) for name, modules in json.loads(content).items()}
