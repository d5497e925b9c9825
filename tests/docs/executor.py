"""Runs the code blocks of a page in a folder of its own.

`run_page` is called in a process that runs all pages, one after another: torch is imported once, and what a
page registers is known to no other test.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.docs.blocks import CodeBlock, ShellCommand, blocks
from tests.docs.pages import ROOT
from tests.ports import free_port
from tests.waiting import wait_until
from toolwright.cli import main

# Settings that say how much is done, not what: whatever a page says, the test does this much of it.
SMALL = {
    "train": {
        "train.steps": 1,
        "rollout.prompts": 2,
        "rollout.samples": 2,
        "task.held_out_size": 2,
        "update.minibatches": 1,
        "run.threads": 1,
    },
    "eval": {"task.held_out_size": 2, "run.threads": 1},
    "sft": {"steps": 1, "batch": 2, "task.held_out_size": 2, "run.threads": 1},
    "workflow search": {"search.runs": 60, "search.tasks": 8, "search.held_out": 8},
}


class PageExecutor:
    """One page: its blocks share a folder and, those of Python, their names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.servers: list[subprocess.Popen[bytes]] = []
        self.ports: dict[str, str] = {}

    def run(self, block: CodeBlock) -> None:
        if block.needs:
            return
        if block.file:
            block.write_file(self.folder)
        elif block.language == "python":
            self._python(block)
        elif block.language == "sh":
            for command in block.commands:
                if not command.needs:
                    self._shell(command)

    def close(self) -> None:
        for server in self.servers:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=120)

    def _python(self, block: CodeBlock) -> None:
        code = compile(self._with_ports(block.code), block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        outcome = eval(code, self.names)
        if inspect.isawaitable(outcome):

            async def awaited() -> None:
                await outcome

            asyncio.run(awaited())

    def _shell(self, command: ShellCommand) -> None:
        words = command.words
        if command.serves:
            self._serve(words)
        elif command.ours:
            status = main(scaled(words[1:]))
            fine = (0, 1) if words[1] == "doctor" else (0,)  # 1: it found something
            assert status in fine, f"{command.block.place}: {command.line} ended with {status}"
        else:
            bin = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            done = subprocess.run(
                ["sh", "-ec", self._with_ports(command.line)],
                cwd=self.folder,
                env={**os.environ, "PATH": bin, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=500,
            )
            assert done.returncode == 0, f"{command.block.place}: {command.line}\n{done.stdout}{done.stderr}"

    def _serve(self, words: Sequence[str]) -> None:
        """Start a server on a free port; the blocks that follow find it there."""
        port, usual = free_port(), {"sandbox": "8010", "ui": "8700"}.get(words[1], "8000")
        options = ["--port", str(port), *(["--no-browser"] if words[1] == "ui" else [])]
        log = self.folder / f"{port}.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                [sys.executable, "-m", "toolwright", *words[1:], *options],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=output,
            )
        self.servers.append(server)
        self.ports[f":{usual}"] = f":{port}"
        wait_until(
            lambda: f":{port}" in log.read_text() or server.poll() is not None,
            f"{' '.join(words)} listens",
        )
        assert server.poll() is None, log.read_text()

    def _with_ports(self, code: str) -> str:
        for usual, port in self.ports.items():
            code = code.replace(f"127.0.0.1{usual}", f"127.0.0.1{port}")
        return code


def scaled(words: Sequence[str]) -> list[str]:
    """The command with as little to do as it takes; a run that goes on has its own settings."""
    command = " ".join(words[:2]) if words[0] == "workflow" else words[0]
    small = SMALL.get(command, {})
    if not small or "run.resume=true" in words or "--dry-run" in words:
        return list(words)
    if "--multirun" in words:  # two runs in place of many
        values = [len(word.split(",")) for word in words]
        most = values.index(max(values))
        words = [",".join(word.split(",")[: 2 if n == most else 1]) for n, word in enumerate(words)]
    kept = [word for word in words if word.partition("=")[0] not in small]
    return [*kept, *(f"{key}={value}" for key, value in small.items())]


def run_page(page: Path, folder: Path) -> None:
    """Run every block of a page in `folder`; what it prints lies there in output.txt."""
    known = set(sys.modules)
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    executor = PageExecutor(folder)
    try:
        with (folder / "output.txt").open("w") as output, contextlib.redirect_stdout(output):
            for block in blocks(page):
                executor.run(block)
    except BaseException as error:  # with what the caller's process can read
        told = (folder / "output.txt").read_text(errors="replace")[-4000:]
        raise AssertionError(f"{traceback.format_exc()}\n{told}") from error
    finally:
        executor.close()
        os.chdir(before)
        sys.path.remove(str(folder))
        for name in set(sys.modules) - known:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]
