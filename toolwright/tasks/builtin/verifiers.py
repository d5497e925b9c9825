"""Environments of the package `verifiers`: its rows as tasks, its own loop, its rubric as the reward."""

from __future__ import annotations

import asyncio
import json
import random
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from toolwright.failures import TaskFailure, UserError
from toolwright.tasks import TASKS, SplitSizes, TaskSet
from toolwright.tasks.environment import ENVIRONMENTS, Observation, Outcome
from toolwright.tasks.verifiers_package import FAULTS, event_loop, loaded, policy_client
from toolwright.trajectory import Task

Conversation = list[dict[str, Any]]


@ENVIRONMENTS.register("verifiers")
class VerifiersEnvironment:
    """One rollout of a verifiers environment, whose model is our policy: what it asks becomes what the policy
    reads, and what the policy says is its answer. `row` is the row of the data set."""

    def __init__(self, id: str, row: dict[str, Any], args: dict[str, Any] | None = None) -> None:
        self.env, self.row = loaded(id, json.dumps(args or {}, sort_keys=True)), row
        self.loop = event_loop()
        self.asked: asyncio.Queue[tuple[Conversation, list[Any]] | None] = asyncio.Queue()
        self.answer: asyncio.Future[tuple[str, Sequence[Any]]] | None = None
        self.known: list[tuple[str, Any]] = []  # what the policy has read and said: role and content

    async def reset(self, task: Task) -> Observation:
        self.rollout = asyncio.run_coroutine_threadsafe(self._rollout(), self.loop)
        messages, tools = await self._next() or self._over()
        return Observation(_text(messages), messages=messages, tools=tools)

    async def step(self, action: str, calls: Sequence[tuple[str, dict[str, Any]]] = ()) -> Outcome:
        assert self.answer is not None, "reset comes first"
        self.loop.call_soon_threadsafe(self.answer.set_result, (action, calls))
        if (asked := await self._next()) is not None:
            answers = [one["content"] for one in asked[0] if one["role"] == "tool"]
            if len(answers) != len(calls):
                return Outcome(_text(asked[0]), messages=asked[0])
            others = [one for one in asked[0] if one["role"] != "tool"]
            return Outcome(_text(others), messages=others, answers=answers)
        state = self.rollout.result()
        last, reward = _plain(state.get("final_env_response") or ()), float(state["reward"])
        return Outcome(_text(last), reward, True, info={"success": reward >= self.env.pass_threshold})

    async def close(self) -> None:
        self.rollout.cancel()

    async def _next(self) -> tuple[Conversation, list[Any]] | None:
        """Return what the environment asks next; None where it is over."""
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.asked.get(), self.loop))
        except asyncio.CancelledError:  # it took too long
            self.rollout.cancel()
            raise

    def _over(self) -> Any:
        self.rollout.result()
        raise TaskFailure("the verifiers environment was over before the policy was asked anything")

    async def _rollout(self) -> Any:
        faults: list[str] = []
        FAULTS.set(faults)
        try:
            state = await self.env.rollout(self.row, policy_client()(self), "policy", {})
            await self.env.rubric.score_rollout(state)
            await self.env.rubric.cleanup(state)
            if error := state.get("error"):
                raise TaskFailure(f"the verifiers environment gave up: {error!r}: {error.__cause__!r}")
            if faults:  # verifiers itself takes such a reward as 0
                raise TaskFailure(f"a reward of the verifiers environment raised {faults[0]}")
            return state
        finally:
            self.asked.put_nowait(None)

    async def ask(self, prompt: Any, tools: Iterable[Any] | None) -> tuple[str, Sequence[Any]]:
        """Stand in for the model: verifiers calls this in place of a request to a server."""
        messages = _plain(prompt)
        said = [(one["role"], one["content"]) for one in messages]
        if said[: len(self.known)] != self.known or (self.answer and not self.answer.done()):
            raise TaskFailure(
                "the verifiers environment rewrites the conversation, or asks for two answers at once; its "
                "policy reads one conversation that only grows"
            )
        new, self.known = messages[len(self.known) :], said
        self.answer = self.loop.create_future()
        schemas = [tool.model_dump(exclude={"strict"}) for tool in tools or ()]
        self.asked.put_nowait((new, [{"type": "function", "function": schema} for schema in schemas]))
        text, calls = await self.answer
        self.known.append(("assistant", text))
        return text, calls


def _plain(messages: Any) -> Conversation:
    plain = [one if isinstance(one, dict) else one.model_dump() for one in messages]
    return [{"role": one["role"], "content": one.get("content") or ""} for one in plain]


def _text(messages: Conversation) -> str:
    return "\n".join(str(one["content"]) for one in messages)


@TASKS.register("verifiers")
def verifiers(*, sizes: SplitSizes, id: str, args: dict[str, Any] | None = None) -> TaskSet:
    """`id`: an installed environment, or the file of one; `args`: what its `load_environment` takes. Without
    an evaluation set of its own, rows of its training set are held out."""
    where = str(Path(id).resolve()) if id.endswith(".py") else id
    env = loaded(where, json.dumps(args or {}, sort_keys=True))
    rows, held = list(env.build_dataset() or ()), list(env.build_eval_dataset() or ())
    if not held:
        random.Random(sizes.seed).shuffle(rows)
        held, rows = rows[: sizes.held_out], rows[sizes.held_out :]

    def task(row: dict[str, Any], split: str, number: int) -> Task:
        try:
            json.dumps(row)
            prompt = _plain(row["prompt"])
        except (TypeError, AttributeError):
            raise UserError(f"verifiers environment {id}: {split} row {number} is no conversation") from None
        if not all(isinstance(one["content"], str) for one in prompt):
            raise UserError(f"verifiers environment {id}: {split} row {number} holds more than text")
        world = {"name": "verifiers", "id": where, "row": row, **({"args": args} if args else {})}
        return Task(
            f"{Path(id).stem}:{split}:{number}",
            prompt,
            row.get("answer"),
            Path(id).stem if row.get("task") in (None, "default") else str(row["task"]),
            {"environment": world},
        )

    return TaskSet(
        train=[task(row, "train", number) for number, row in enumerate(rows[: sizes.train])],
        held_out=[task(row, "held out", number) for number, row in enumerate(held[: sizes.held_out])],
        scorer="environment",
        alphabet=string.printable,
        demonstrate=_answered,
    )


def _answered(task: Task, rng: random.Random) -> list[dict[str, Any]]:
    """The row's own answer, for the warm start: of a single turn, or as the last one."""
    if not isinstance(task.ground_truth, str) or not task.ground_truth:
        raise UserError(f"task {task.id} has no answer to show: its row of the data set has none")
    return [{"role": "assistant", "content": task.ground_truth}]
