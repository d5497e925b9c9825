"""The rooms: which may import which."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]


def linted(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter over the package that lies in `folder`."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); sys.argv = ['lint-imports', '--no-cache']; "
    code += "from importlinter.cli import lint_imports_command; lint_imports_command()"
    line = [sys.executable, "-c", code]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    shutil.copytree(
        ROOT / "toolwright", tmp_path / "toolwright", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_rooms_import_downwards_only(house: Path) -> None:
    done = linted(house)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_import_upwards_inside_a_function_is_found(house: Path) -> None:
    with (house / "toolwright/models/elementwise.py").open("a") as file:
        file.write("\n\ndef late() -> None:\n    from toolwright.trainer import loop\n")
    done = linted(house)
    assert done.returncode == 1
    assert "toolwright.models.elementwise -> toolwright.trainer" in done.stdout


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph("toolwright", exclude_type_checking_imports=True, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imported).prepare()  # raises CycleError, which names the circle


def test_a_public_class_name_exists_once() -> None:
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "toolwright").rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}
