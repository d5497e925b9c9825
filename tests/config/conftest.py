"""Configurations are composed in an empty folder, so that what a test leaves behind is seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolwright.config.compose import Source, resolve
from toolwright.failures import UserError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def complaint() -> Callable[..., str]:
    """The message that a command line earns."""

    def of(*words: str, **source: Any) -> str:
        with pytest.raises(UserError) as caught:
            resolve(Source(**source), words)
        return str(caught.value)

    return of


@pytest.fixture
def write(folder: Path) -> Callable[[str, str], Path]:
    def file(name: str, text: str) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return file
