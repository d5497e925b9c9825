"""Compiled code is kept between processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolwright.models.product_kernel import compiled_once


class Compiler:
    def __init__(self) -> None:
        self.runs = 0

    def __call__(self) -> bytes:
        self.runs += 1
        return b"code"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "toolwright"


@pytest.mark.usefixtures("folder")
def test_the_same_source_is_compiled_once_and_another_again() -> None:
    compiler = Compiler()
    assert [compiled_once(source, compiler) for source in ("a", "a", "b")] == [b"code"] * 3
    assert compiler.runs == 2


@pytest.mark.parametrize("content", [b"", b"code", b"\0" * 100])
def test_a_damaged_file_is_compiled_again(folder: Path, content: bytes) -> None:
    compiler = Compiler()
    compiled_once("a", compiler)
    (kept,) = folder.iterdir()
    kept.write_bytes(content)
    assert compiled_once("a", compiler) == compiled_once("a", compiler) == b"code"
    assert compiler.runs == 2


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME"])
def test_a_folder_that_cannot_be_made_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    assert compiled_once("a", Compiler()) == b"code"


def test_code_of_another_user_is_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler()
    compiled_once("a", compiler)
    monkeypatch.setattr("os.getuid", lambda: 12345)
    compiled_once("a", compiler)
    assert compiler.runs == 2
