"""Names to things: a new file is enough, a wrong name is answered with the right ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from toolwright.failures import UserError
from toolwright.registry import Registry, load_object, short_name


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty package `shapes` with a registry, as a user who reads ours would write one."""
    folder = tmp_path / "shapes"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from toolwright.registry import Registry\nregistry = Registry('shape', 'shapes')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "shapes"]:
        del sys.modules[name]


def registry_of(package: Path) -> Registry[Any]:
    return load_object(f"{package.name}:registry")


def write(path: Path, code: str) -> Path:
    path.write_text(dedent(code))
    return path


CIRCLE = """
from shapes import registry

@registry.register("circle", "round", needs={"radius"})
def circle(radius, *, name="c"):
    return 3 * radius * radius
"""


class TestNames:
    def test_a_new_file_in_the_package_is_found_by_itself(self, package: Path) -> None:
        write(package / "circle.py", CIRCLE)
        entry = registry_of(package).get("circle")
        assert entry.target(2) == 12
        assert entry.needs == {"radius"}

    def test_one_thing_may_have_two_names(self, package: Path) -> None:
        write(package / "circle.py", CIRCLE)
        shapes = registry_of(package)
        assert shapes.names() == ["circle", "round"]
        assert shapes.get("circle").target is shapes.get("round").target

    def test_an_unknown_name_is_answered_with_the_known_ones(self, package: Path) -> None:
        write(package / "circle.py", CIRCLE)
        with pytest.raises(UserError, match="unknown shape 'square'; known: circle, round"):
            registry_of(package).get("square")

    def test_two_things_of_one_name_are_a_mistake(self) -> None:
        registry: Registry[Callable[..., Any]] = Registry("shape", "shapes")
        registry.register("circle")(print)
        with pytest.raises(ValueError, match="two shapes are called 'circle'"):
            registry.register("circle")(repr)

    def test_a_file_that_does_not_import_is_never_silently_left_out(self, package: Path) -> None:
        write(package / "circle.py", CIRCLE)
        write(package / "broken.py", "import no_such_module_anywhere\n")
        shapes = registry_of(package)
        for _ in range(2):  # the second time as well: the first must not leave half a list behind
            with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
                shapes.names()

    def test_a_target_is_given_only_what_its_signature_takes(self, package: Path) -> None:
        write(package / "circle.py", CIRCLE)
        entry = registry_of(package).get("circle")
        assert entry.accepted(radius=1, colour="red") == {"radius": 1}


class TestReferences:
    """`path/to/file.py:name` and `package.module:name`."""

    def test_a_users_file_serves_as_a_name(self, package: Path, tmp_path: Path) -> None:
        file = write(
            tmp_path / "mine.py", "def square(side):\n    return side * side\nsquare.needs = {'side'}\n"
        )
        entry = registry_of(package).get(f"{file}:square")
        assert entry.target(3) == 9
        assert entry.needs == {"side"}

    def test_what_cannot_be_called_is_none_of_its_kind(self, package: Path, tmp_path: Path) -> None:
        file = write(tmp_path / "mine.py", "NUMBER = 3\n")
        with pytest.raises(UserError, match="is not a shape; it is a int"):
            registry_of(package).get(f"{file}:NUMBER")

    def test_a_module_reference_names_an_object(self) -> None:
        assert load_object("math:floor")(2.5) == 2

    def test_one_file_is_run_once_however_often_it_is_named(self, tmp_path: Path) -> None:
        file = write(tmp_path / "once.py", "things = []\n")
        assert load_object(f"{file}:things") is load_object(f"{tmp_path}/../{tmp_path.name}/once.py:things")

    def test_two_files_of_one_name_are_two_modules(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        first = write(tmp_path / "a" / "reward.py", "number = 1\n")
        second = write(tmp_path / "b" / "reward.py", "number = 2\n")
        assert (load_object(f"{first}:number"), load_object(f"{second}:number")) == (1, 2)

    def test_dataclasses_in_a_users_file_work(self, tmp_path: Path) -> None:
        file = write(
            tmp_path / "boxes.py",
            """
            from __future__ import annotations
            from dataclasses import dataclass

            @dataclass
            class Box:
                side: int
            """,
        )
        assert load_object(f"{file}:Box")(3).side == 3

    @pytest.mark.parametrize("reference", ["file.py:", ":name", "name"])
    def test_what_is_not_a_reference_is_told_how_to_be_one(self, reference: str) -> None:
        with pytest.raises(UserError, match=r"write path/to/file\.py:name or package\.module:name"):
            load_object(reference)

    def test_a_missing_file_is_named_in_full(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=f"no such file: {tmp_path}/gone.py"):
            load_object(f"{tmp_path}/gone.py:name")

    def test_a_missing_module_is_named(self) -> None:
        with pytest.raises(UserError, match=r"'nowhere\.at\.all:name': no module named 'nowhere'"):
            load_object("nowhere.at.all:name")

    def test_a_missing_name_is_answered_with_the_nearest(self, tmp_path: Path) -> None:
        file = write(tmp_path / "mine.py", "def square(side):\n    return side * side\n")
        with pytest.raises(UserError, match=r"has no 'sqare'; did you mean 'square'\?"):
            load_object(f"{file}:sqare")

    def test_a_fault_inside_the_users_file_is_reported_with_its_line(self, tmp_path: Path) -> None:
        file = write(tmp_path / "faulty.py", "import no_such_module_anywhere\n")
        for _ in range(2):  # half a module is not kept for the next time
            with pytest.raises(UserError, match=r"ModuleNotFoundError: .*no_such_module_anywhere.*line 1"):
                load_object(f"{file}:name")


@pytest.mark.parametrize(
    ("name", "short"),
    [("grpo", "grpo"), ("a/b/mine.py:build", "mine"), ("package.module:build", "package.module")],
)
def test_a_reference_has_a_short_name_that_fits_a_folder(name: str, short: str) -> None:
    assert short_name(name) == short
