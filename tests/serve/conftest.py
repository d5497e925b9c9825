"""A server as a user starts it, with a model that was taught to call a tool; one for a process's tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .taught import teach


class Served:
    """A running server, and just enough HTTP to be rude to it."""

    def __init__(self, url: str, folder: Path, process: subprocess.Popen[str]) -> None:
        self.url, self.folder, self.process = url, folder, process
        self.name = folder.name

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path,
            data=data,
            method=method,
            headers={"content-type": "application/json", **(headers or {})},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                raw, code = response.read(), response.status
        except urllib.error.HTTPError as error:
            with error:
                raw, code = error.read(), error.code
        try:
            return code, json.loads(raw)
        except ValueError:
            return code, raw.decode()

    def metric(self, name: str) -> float:
        text = self.ask("GET", "/metrics")[1]
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} "))


@contextmanager
def serving(folder: Path, *options: str, **environment: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [sys.executable, "-m", "toolwright", "serve", str(folder), "--port", "0", *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving "), line
        yield Served(line.split()[-1], folder, process)
    finally:
        process.terminate()
        process.wait(timeout=60)
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "taught"
    teach(folder)
    return folder


@pytest.fixture(scope="session")
def served(taught: Path) -> Iterator[Served]:
    with serving(taught, "--slots", "8") as running:
        yield running
