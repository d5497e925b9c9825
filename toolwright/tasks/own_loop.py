"""Environments with a loop of their own, which ask the policy as they would ask the server of a model."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from toolwright.failures import TaskFailure
from toolwright.tasks.environment import Message, Observation, Outcome, ToolCall
from toolwright.trajectory import Task

Question = tuple[Sequence[Message], Sequence[Any]]  # what is new in the conversation, and the tools on offer


class OwnLoop:
    """An environment that runs a whole attempt in `play`, and calls `ask` wherever it wants an answer.

    `play` runs in an event loop that all such environments of a process share, in a thread of its own: code
    that blocks there does not hold up the engine.
    """

    _questions: asyncio.Queue[Question | None]
    _answer: asyncio.Future[tuple[str, Sequence[ToolCall]]] | None
    _known: list[dict[str, Any]]  # what the policy has read and said
    _attempt: Future[Outcome]

    async def play(self, task: Task) -> Outcome:
        """Make the attempt and judge it."""
        raise NotImplementedError

    async def ask(self, conversation: Sequence[Any], tools: Sequence[Any] = ()) -> tuple[dict[str, Any], str]:
        """Return the policy's next message and what ended it. All have the form of OpenAI's chat completions:
        messages, schemas of tools, calls, and `stop` or `tool_calls` as the end."""
        messages = [{"role": one["role"], "content": one["content"] or ""} for one in conversation]
        if messages[: len(self._known)] != self._known or (self._answer and not self._answer.done()):
            raise TaskFailure(
                "the environment rewrites the conversation, or asks for two answers at once; its policy "
                "reads one conversation that only grows"
            )
        self._answer = asyncio.get_running_loop().create_future()
        self._questions.put_nowait((messages[len(self._known) :], tools))
        text, asked = await self._answer
        self._known = [*messages, {"role": "assistant", "content": text}]
        functions = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in asked]
        calls = [
            {"id": f"call_{number}", "type": "function", "function": function}
            for number, function in enumerate(functions)
        ]
        return {**self._known[-1], "tool_calls": calls}, "tool_calls" if calls else "stop"

    async def reset(self, task: Task) -> Observation:
        self._questions, self._answer, self._known = asyncio.Queue(), None, []
        self._attempt = asyncio.run_coroutine_threadsafe(self._played(task), _shared_loop())
        question = await self._next()
        if question is None:
            self._attempt.result()
            raise TaskFailure("the environment ended before it asked the policy anything")
        return Observation(_text(question[0]), messages=question[0], tools=question[1])

    async def step(self, action: str, calls: Sequence[ToolCall] = ()) -> Outcome:
        assert self._answer is not None, "reset comes first"
        _shared_loop().call_soon_threadsafe(self._answer.set_result, (action, calls))
        question = await self._next()
        if question is None:
            end = self._attempt.result()
            return replace(end, done=True, text=end.text or _text(end.messages), messages=())
        answers = [str(one["content"]) for one in question[0] if one["role"] == "tool"]
        if len(answers) != len(calls):
            return Outcome(_text(question[0]), messages=question[0])
        others = [one for one in question[0] if one["role"] != "tool"]
        return Outcome(_text(others), messages=others, answers=answers)

    async def close(self) -> None:
        self._attempt.cancel()

    async def _played(self, task: Task) -> Outcome:
        try:
            return await self.play(task)
        finally:
            self._questions.put_nowait(None)

    async def _next(self) -> Question | None:
        """Return what `play` asks next; None if it is over."""
        try:
            next_question = asyncio.run_coroutine_threadsafe(self._questions.get(), _shared_loop())
            return await asyncio.wrap_future(next_question)
        except asyncio.CancelledError:  # it took too long
            self._attempt.cancel()
            raise


def succeeds(environment: OwnLoop, task: Task, said: str, *, turns: int = 8) -> bool:
    """Say whether a policy that says the same in each turn succeeds."""

    async def attempt() -> bool:
        await environment.reset(task)
        try:
            for _ in range(turns):
                outcome = await environment.step(said)
                if outcome.done:
                    return bool(outcome.info.get("success"))
            return False
        finally:
            await environment.close()

    return asyncio.run_coroutine_threadsafe(attempt(), _shared_loop()).result()


@functools.cache
def _shared_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="environments' own loops", daemon=True).start()
    return loop


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(str(one["content"]) for one in messages)
