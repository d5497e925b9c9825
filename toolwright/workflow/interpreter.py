"""The interpreter: evaluates a workflow from its output backwards, within limits, and records every call."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.providers.budget import BudgetSpent
from toolwright.tools.toolbox import Toolbox
from toolwright.trajectory import Task
from toolwright.workflow.graph import Node, Pieces, Ref, WorkflowLimits, refs_of
from toolwright.workflow.operators import CHOOSE, TASK, TOOL
from toolwright.workflow.program import Workflow

if TYPE_CHECKING:
    from toolwright.providers import ChatModel
    from toolwright.sandbox.client import Client, ExecutionResult
    from toolwright.tools.call import ToolRequest


log = logging.getLogger(__name__)

# The cause of a failure: the workflow itself, which then scores 0; or the infrastructure (machine, provider,
# scorer), and then the outcome says nothing about the workflow.
Blame = Literal["", "workflow", "infrastructure"]


class LimitReached(Exception):
    """The workflow reached a limit; what it used until then is charged."""


@dataclass(frozen=True)
class CodeRun:
    """The result of a program in the sandbox; `trouble` is the error as the model sees it."""

    ok: bool
    stdout: str = ""
    trouble: str = ""


class CodeRunner(Protocol):
    """Runs generated code, never in this process."""

    async def run(self, code: str) -> CodeRun: ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class ModelCall:
    """The record of one model call."""

    node: str
    sample: int
    prompt: str
    reply: str
    tokens: int
    cost: float | None  # None where nobody has put a price on the model
    seconds: float
    cached: bool


@dataclass
class Trace:
    """The record of a workflow on one task."""

    task_id: str
    answer: str | None = None
    calls: list[ModelCall] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what an operator could not read, and did instead
    failure: str = ""
    blame: Blame = ""
    seconds: float = 0.0
    cost: float = 0.0
    tokens: int = 0


class WorkflowInterpreter:
    """Runs workflows on tasks. It holds what all runs share, and no state of a single run."""

    def __init__(
        self,
        chat: ChatModel,
        *,
        runner: CodeRunner | None = None,
        tools: Toolbox | None = None,
        limits: WorkflowLimits | None = None,
        seed: int = 0,
        temperature: float = 0.7,
        max_tokens: int = 2048,
    ) -> None:
        self.chat, self.runner, self.tools = chat, runner, tools
        self.limits = limits or WorkflowLimits()
        self.seed, self.temperature, self.max_tokens = seed, temperature, max_tokens
        # A model that answers at once gains nothing from concurrent calls.
        self.side_by_side = bool(getattr(chat, "waits", True))

    async def run(self, workflow: Workflow, task: Task) -> Trace:
        """Run a workflow on a task; failures are part of the trace. Raises a UserError or BudgetSpent."""
        attempt = _Attempt(self, workflow, task)
        trace, started = attempt.trace, time.perf_counter()
        try:
            async with asyncio.timeout(self.limits.seconds):
                trace.answer = await attempt.text(workflow.output)
        except TimeoutError:
            trace.blame, trace.failure = "workflow", f"it took longer than {self.limits.seconds:g} s"
        except (LimitReached, TaskFailure) as error:  # also what a provider refuses to answer
            trace.blame, trace.failure = "workflow", str(error)
        except InfrastructureFailure as error:
            trace.blame, trace.failure = "infrastructure", str(error)
        finally:
            await attempt.end()
            trace.seconds = time.perf_counter() - started
        return trace


_numbers = itertools.count()


class _Attempt:
    """One workflow on one task."""

    def __init__(self, interpreter: WorkflowInterpreter, workflow: Workflow, task: Task) -> None:
        self.interpreter, self.workflow, self.task = interpreter, workflow, task
        self.name = f"{task.id}/{next(_numbers)}"  # two workflows may try one task at once
        self.trace = Trace(task.id)
        self.asked = 0  # calls of the model
        self._values: dict[str, list[dict[str, Any]]] = {
            TASK: [{"problem": problem_of(task), "entry_point": str(task.extra_info.get("entry_point", ""))}]
        }
        self._running: dict[str, asyncio.Future[None]] = {}

    async def text(self, pieces: Pieces) -> str:
        await self._need(ref.node for ref in refs_of(pieces))
        return "".join(self._text(piece) if isinstance(piece, Ref) else piece for piece in pieces)

    async def end(self) -> None:
        """Cancel what still runs, and end the attempt's tools."""
        running = [task for task in self._running.values() if not task.done()]
        for task in running:
            task.cancel()
        if self._running:
            await asyncio.gather(*self._running.values(), return_exceptions=True)
        if self.interpreter.tools is not None:
            await self.interpreter.tools.end(self.name)

    def _text(self, ref: Ref) -> str:
        value = self._values[ref.node][0][ref.field]
        return value if isinstance(value, str) else str(value)

    async def _need(self, names: Iterable[str]) -> None:
        missing = [name for name in dict.fromkeys(names) if name not in self._values]
        if self.interpreter.side_by_side:
            for name in missing:  # whoever asks for it next waits for the same
                if name not in self._running:
                    self._running[name] = asyncio.ensure_future(self._compute(name))
            await asyncio.gather(*(asyncio.shield(self._running[name]) for name in missing))
        else:
            for name in missing:
                if name not in self._values:
                    await self._compute(name)

    async def _compute(self, name: str) -> None:
        node = self.workflow.by_name[name]
        if node.operator == CHOOSE:
            self._values[name] = [{"value": await self._chosen(node)}]
            return
        await self._need(ref.node for ref in node.refs)
        inputs = {port: self._input(node, port) for port in node.kind.ports}
        _, first = self.workflow.identities[name]
        samples = range(first, first + node.repeat)
        if self.interpreter.side_by_side and node.repeat > 1:
            tasks = [asyncio.ensure_future(self._sample(node, inputs, number)) for number in samples]
            try:
                self._values[name] = await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
        else:
            self._values[name] = [await self._sample(node, inputs, number) for number in samples]

    async def _chosen(self, node: Node) -> str:
        (condition,) = node.inputs["on"]
        assert isinstance(condition, Ref)
        await self._need([condition.node])
        held = self._values[condition.node][0][condition.field]
        if isinstance(held, str):
            held = held.strip()
        return await self.text(node.inputs.get("then" if held else "otherwise", ()))

    async def _sample(self, node: Node, inputs: Mapping[str, Any], number: int) -> dict[str, Any]:
        step = Step(self, node, number)
        try:
            return await node.kind(step, inputs, node.settings)
        except (LimitReached, TaskFailure, InfrastructureFailure, UserError, BudgetSpent, TimeoutError):
            raise
        except Exception as error:
            log.warning("operator %s raised", node.operator, exc_info=error)
            raise TaskFailure(f"node {node.name!r}: {type(error).__name__}: {error}") from error

    def _input(self, node: Node, port: str) -> Any:
        pieces = node.inputs.get(port, ())
        if node.kind.ports[port].kind == "texts":
            # In canonical order: models prefer what they read first, and the order has no meaning.
            rank = {name: place for place, name in enumerate(self.workflow.identities)}
            values: list[str] = []
            for piece in sorted(pieces, key=lambda p: rank.get(p.node, -1) if isinstance(p, Ref) else -1):
                if isinstance(piece, Ref):
                    values += [str(sample[piece.field]) for sample in self._values[piece.node]]
                else:
                    values.append(piece)
            return values
        return "".join(self._text(piece) if isinstance(piece, Ref) else piece for piece in pieces)


class Step:
    """An operator's access to the task, the model, the sandbox and the tools."""

    def __init__(self, attempt: _Attempt, node: Node, sample: int) -> None:
        self._attempt, self.node, self.sample = attempt, node, sample
        self.task = attempt.task
        self._asked = 0

    def instructed(self, text: str) -> str:
        """The node's prompt before a text, as AFlow puts them together."""
        prompt = self._attempt.workflow.prompts.get(self.node.prompt, "")
        return f"{prompt}{'' if not prompt or prompt[-1].isspace() else chr(10)}{text}"

    async def ask(self, prompt: str) -> str:
        """One call of the model, within the limits."""
        attempt, trace, own = self._attempt, self._attempt.trace, self._attempt.interpreter
        limits, left = own.limits, own.limits.tokens - trace.tokens
        if attempt.asked >= limits.calls:
            raise LimitReached(f"it asked for more than {limits.calls} calls of the model")
        if left <= 0:
            raise LimitReached(f"it used more than {limits.tokens} tokens")
        if limits.money is not None and trace.cost >= limits.money:
            raise LimitReached(f"it cost more than ${limits.money:g}")
        attempt.asked += 1
        self._asked += 1
        identity, _ = attempt.workflow.identities[self.node.name]
        reply = await own.chat.complete(
            [{"role": "user", "content": prompt}],
            temperature=own.temperature,
            max_tokens=min(own.max_tokens, left),
            seed=seed_of(own.seed, self.task.id, identity, self.sample, self._asked),
        )
        tokens = reply.prompt_tokens + reply.completion_tokens
        trace.tokens += tokens
        trace.cost += reply.cost or 0.0
        said = (prompt, reply.text, tokens, reply.cost, reply.seconds, reply.cached)
        trace.calls.append(ModelCall(self.node.name, self.sample, *said))
        return reply.text

    async def run_code(self, code: str) -> CodeRun:
        runner = self._attempt.interpreter.runner
        if runner is None:
            raise UserError(f"{self.node.operator} runs code, but there is no sandbox")
        return await runner.run(code)

    async def call_tool(self, call: ToolRequest) -> str:
        tools = self._attempt.interpreter.tools
        if tools is None:
            raise UserError(f"{self.node.operator} is a tool, but there is no toolbox")
        return (await tools.call(call, attempt=self._attempt.name)).text

    def note(self, text: str) -> None:
        self._attempt.trace.notes.append(f"{self.node.name}: {text}")


def toolbox_of(operators: Iterable[str]) -> Toolbox:
    """The tools among operators, each with its defaults."""
    return Toolbox({name.removeprefix(TOOL): {} for name in operators if name.startswith(TOOL)})


def problem_of(task: Task) -> str:
    """The problem of a task as one text."""
    return "\n\n".join(str(message.get("content") or "") for message in task.prompt)


def seed_of(*names: object) -> int:
    """A seed that is a hash of names, whatever was drawn before."""
    told = "\x1f".join(map(str, names)).encode()
    return int.from_bytes(hashlib.blake2b(told, digest_size=8).digest()) >> 1


_LINES = 12  # of an error that the model is told
_LONGEST = 1 << 18  # characters of code; more is nobody's solution
_OUTPUT = 10_000


class CodeSandbox:
    """A client of the server at `url`; without one, of a server that starts with the first run."""

    def __init__(self, url: str | None = None, *, timeout_s: float = 10.0, memory_mb: int = 512) -> None:
        self._url, self._wishes = url, {"timeout_s": timeout_s, "memory_mb": memory_mb}
        self._client: Client | None = None
        self._own = contextlib.ExitStack()

    async def run(self, code: str) -> CodeRun:
        if len(code) > _LONGEST:
            return CodeRun(False, trouble=f"the code is longer than {_LONGEST} characters")
        if self._client is None:
            from toolwright.sandbox.client import Client  # here: it brings aiohttp, half a second
            from toolwright.sandbox.local import local_server

            if self._url is None:
                self._url = self._own.enter_context(local_server())
            self._client = Client(self._url)
        sendable = code.encode("utf-8", "replace").decode()
        return understood(await self._client.run(sendable, **self._wishes))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None
        self._own.close()


def understood(result: ExecutionResult) -> CodeRun:
    if result.ok:
        return CodeRun(True, result.stdout[:_OUTPUT])
    lines = result.stderr.strip().splitlines()[-_LINES:]
    return CodeRun(False, result.stdout[:_OUTPUT], "\n".join(lines) or f"{result.status}: {result.reason}")
