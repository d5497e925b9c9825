"""What commands, functions and services have in common: an attempt is opened, their program runs, and what it
leaves is judged as an end or as a failure."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from toolwright.agents import formats
from toolwright.agents.attempt import Attempt
from toolwright.agents.call_settings import of_format
from toolwright.config import schema
from toolwright.config.agent_program import AgentProgram
from toolwright.failures import TaskFailure, UserError
from toolwright.gateway.server import AttemptAddress, Gateway
from toolwright.gateway.session import Session
from toolwright.models.tokenizer import Tokenizer
from toolwright.providers.blocks import plain_text
from toolwright.runtime.reaper import folder_prefix
from toolwright.trajectory import Task

TEXT_KEPT = 64 << 10  # bytes of what a program prints, from its end


@dataclass(frozen=True)
class ProgramEnd:
    """The end of a program. `trouble` says what went wrong, if anything did."""

    output: str = ""
    trouble: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # its exit code, what it printed, …


class ProgramAgent(ABC):
    """Runs a program for each attempt, with a key of its own for the policy."""

    kind: str  # of program
    usual_concurrency: int

    def __init__(self, config: schema.RolloutConfig, tokenizer: Tokenizer) -> None:
        agent = config.agent
        program = AgentProgram(function=agent) if isinstance(agent, str) and ":" in agent else agent
        if not isinstance(program, AgentProgram):
            raise UserError(f"rollout.agent={agent} needs a program: write rollout.agent.{self.kind}=…")
        self.config, self.program = config, program
        self.format = formats.build(config.call_format, of_format(config.call_params), tokenizer)
        self.gateway = Gateway()
        self.concurrency = self.program.concurrency or self.usual_concurrency
        self._slots = asyncio.Semaphore(self.concurrency)

    @abstractmethod
    async def run(self, attempt: Attempt, address: AttemptAddress, session: Session) -> ProgramEnd:
        """Run the program to its end. If this is cancelled, nothing of it is left behind."""

    @property
    @abstractmethod
    def label(self) -> str:
        """How messages name the program."""

    async def attempt(self, attempt: Attempt) -> None:
        attempt.restart_limit(None)
        await self._slots.acquire()
        try:
            attempt.restart_limit(self.config.timeout_s)
            session = Session(attempt, self.config, self.program, self.format)
            address = await self.gateway.open(session)
            try:
                with attempt.waiting(self.label):
                    end = await self.run(attempt, address, session)
            finally:
                self.gateway.end(address)
        finally:
            self._slots.release()
        attempt.trajectory.result = self._result(end, session.result)
        if session.limit:  # a limit of the run: whatever the program made of it, the attempt ends there
            attempt.finish(session.limit)
        elif end.trouble:
            refused = f"; its last call was refused: {session.refusal}" if session.refusal else ""
            raise TaskFailure(f"attempt {attempt.id}: {self.label} {end.trouble}{refused}")

    async def close(self) -> None:
        await self.gateway.close()

    def _result(self, end: ProgramEnd, posted: Any) -> dict[str, Any]:
        """`answer` is what scorers compare; without one they read what the policy said."""
        answer = posted.get("answer") if isinstance(posted, dict) else posted
        answer = end.output.strip() if answer is None else answer
        if self.program.answer == "transcript" or answer == "":
            answer = None
        text = None if answer is None else str(answer)
        return {"answer": text, **end.facts, **({} if posted is None else {"posted": posted})}


@asynccontextmanager
async def working_folder() -> AsyncIterator[str]:
    """An empty folder for one attempt. Whoever works in it may be killed, so that it is removed here; if this
    process is killed too, by the run's reaper."""
    folder = tempfile.mkdtemp(prefix=folder_prefix())
    try:
        yield folder
    finally:  # in a thread: it may wait for the disk for milliseconds, in which nothing would be sampled
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def task_data(task: Task) -> dict[str, Any]:
    """A task as programs get it: all but the ground truth."""
    said = [message for message in task.prompt if message.get("role") == "user"]
    question = plain_text(said[-1].get("content")) if said else ""
    return {
        "id": task.id,
        "question": question,
        "prompt": task.prompt,
        "data_source": task.data_source,
        "extra_info": task.extra_info,
    }


def variables(address: AttemptAddress, model: str) -> dict[str, str]:
    """Environment variables that tell the SDKs where the policy is."""
    local = ",".join(filter(None, [os.environ.get("NO_PROXY", ""), "127.0.0.1", "localhost"]))
    return {
        "OPENAI_BASE_URL": f"{address.url}/v1",
        "OPENAI_API_BASE": f"{address.url}/v1",
        "OPENAI_API_KEY": address.key,
        "OPENAI_MODEL": model,
        "ANTHROPIC_BASE_URL": address.url,
        "ANTHROPIC_API_KEY": address.key,
        "ANTHROPIC_MODEL": model,
        "TOOLWRIGHT_URL": address.url,
        "TOOLWRIGHT_MODEL": model,
        "NO_PROXY": local,
        "no_proxy": local,
    }
