"""A command as an agent: a process for each attempt."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from toolwright.agents.attempt import Attempt
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.gateway.command_sandbox import CommandSandbox
from toolwright.gateway.processes import ChildProcess
from toolwright.gateway.program import (
    TEXT_KEPT,
    ProgramAgent,
    ProgramEnd,
    task_data,
    variables,
    working_folder,
)
from toolwright.gateway.server import AttemptAddress
from toolwright.gateway.session import Session
from toolwright.models.tokenizer import Tokenizer
from toolwright.trajectory import Task

INTERPRETER = re.compile(r"python[\d.]*|node|bash|sh")
SAID = 2000  # characters of standard error in a message


class CommandAgent(ProgramAgent):
    """`rollout.agent.command`. The task is JSON on standard input; `{question}` and `{task}` in a word of the
    command stand for the question and for that JSON. Each process has an empty folder to work in."""

    kind = "command"
    usual_concurrency = 8 * (os.cpu_count() or 1)

    def __init__(self, config: schema.RolloutConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        command = self.program.command or ""
        words = shlex.split(command) if isinstance(command, str) else list(command)
        if not words:
            raise UserError("rollout.agent.command is empty: write a command line, such as 'python agent.py'")
        self.words = [_absolute(word) for word in words]
        program = shutil.which(self.words[0], path=_search_path())
        if program is None:
            raise UserError(f"rollout.agent.command: there is no program {words[0]!r} to run")
        _check_script(self.words)
        self.sandbox: CommandSandbox | None = None
        if self.program.isolation != "none":
            self.words[0] = program
            files = [word for word in self.words if os.path.isfile(word)]
            self.sandbox = CommandSandbox(self.program.isolation, files, self.program.readable)

    @property
    def label(self) -> str:
        return f"the command {shlex.join(self.words)!r}"

    async def run(self, attempt: Attempt, address: AttemptAddress, session: Session) -> ProgramEnd:
        task = attempt.task
        async with (
            working_folder() as folder,
            self._started(_filled(self.words, task), folder, address) as child,
        ):
            out, err = await child.communicate(orjson.dumps(task_data(task)), kept=TEXT_KEPT)
        code, output, errors = child.process.returncode, _text(out), _text(err)
        trouble = (
            f"exited with {code}: {errors[-SAID:].strip() or 'nothing on standard error'}" if code else ""
        )
        return ProgramEnd(output, trouble, {"exit_code": code, "output": output, "errors": errors[-SAID:]})

    @asynccontextmanager
    async def _started(
        self, words: list[str], folder: str, address: AttemptAddress
    ) -> AsyncIterator[ChildProcess]:
        """The process, which is ended with all that it started. In the sandbox it gets no variable of
        this process's environment."""
        given = {"PATH": _search_path(), **variables(address, self.program.model), **self.program.env}
        if self.sandbox is not None:
            async with self.sandbox.started(words, folder=folder, env=given, url=address.url) as child:
                yield child
            return
        child = await ChildProcess.start(words, cwd=folder, env={**os.environ, **given})
        try:
            yield child
        finally:
            await child.end()


def _filled(words: list[str], task: Task) -> list[str]:
    data = task_data(task)
    named = {"{question}": data["question"], "{task}": orjson.dumps(data).decode()}
    for mark, text in named.items():
        words = [word.replace(mark, text) for word in words]
    return words


def _search_path() -> str:
    """The path to look for programs in. Without an active environment, `python` is the one that runs this."""
    path = os.environ.get("PATH", os.defpath)
    active = "VIRTUAL_ENV" in os.environ or sys.prefix == sys.base_prefix
    return path if active else f"{Path(sys.executable).parent}{os.pathsep}{path}"


def _check_script(words: list[str]) -> None:
    """Check that an interpreter's script exists: it would be looked for in the attempt's empty folder."""
    runs = len(words) > 1 and INTERPRETER.fullmatch(Path(words[0]).name) and words[1][:1] not in ("-", "{")
    if runs and not Path(words[1]).is_file():
        raise UserError(
            f"rollout.agent.command: there is no file {words[1]!r} for {words[0]} to run in {Path.cwd()}"
        )


def _absolute(word: str) -> str:
    """A file as seen from anywhere: the command runs in a folder of its own."""
    path = Path(word).expanduser()
    return str(path.absolute()) if "{" not in word and path.is_file() else word


def _text(printed: bytes) -> str:
    return printed.decode("utf-8", "replace")
