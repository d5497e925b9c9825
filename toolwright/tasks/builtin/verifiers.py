"""Environments of the package `verifiers`: its rows as tasks, its own loop, its rubric as the reward."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from toolwright.failures import TaskFailure, UserError, extra, reraised
from toolwright.registry import absolute, load_object
from toolwright.tasks import ENVIRONMENTS, TASKS, Outcome, OwnLoop, SplitSizes, TaskSet
from toolwright.tasks.worlds import from_rows
from toolwright.trajectory import Task


@ENVIRONMENTS.register("verifiers")
@dataclass
class VerifiersEnvironment(OwnLoop):
    """One rollout of a verifiers environment, whose model is our policy. `row` is a row of its data set, and
    `args` is JSON."""

    id: str
    row: dict[str, Any]
    args: str = "{}"

    async def play(self, task: Task) -> Outcome:
        env, client = _loaded(self.id, self.args)
        state = await env.rollout(self.row, client(self), "policy", {})
        try:
            if error := state.get("error"):
                raise TaskFailure(f"the verifiers environment gave up: {error!r}: {error.__cause__!r}")
            await env.rubric.score_rollout(state)
        finally:
            await env.rubric.cleanup(state)
        info, last = {"success": state["reward"] >= env.pass_threshold}, state.get("final_env_response") or ()
        return Outcome("", float(state["reward"]), info=info, messages=last)


@functools.cache
def _loaded(id: str, args: str) -> tuple[Any, Any]:
    """The environment, and verifiers' client of a model, whose model is the policy of an attempt."""
    with extra("verifiers", needed_by="task 'verifiers'"):
        import verifiers as vf
        from verifiers.envs import environment  # from 0.3 on there are none
        from verifiers.utils.async_utils import maybe_call_with_named_args

    class PolicyClient(vf.OpenAIChatCompletionsClient):
        async def get_response(self, prompt: Any, *_: Any, tools: Any = None, **__: Any) -> Any:
            said, end = await self.client.ask(prompt, await self.to_native_tools(tools) or ())
            calls = [vf.ToolCall(id=call["id"], **call["function"]) for call in said["tool_calls"]]
            message = {**said, "tool_calls": calls or None, "finish_reason": end, "is_truncated": False}
            return vf.Response(id="", created=0, model="policy", message=message)

    async def reward(rubric: Any, func: Any, state: Any) -> float:
        with reraised(TaskFailure, "a reward of the verifiers environment raised"):
            return float(await maybe_call_with_named_args(func, **rubric.score_objects(state)))

    vf.Rubric._call_individual_reward_func = reward  # its own takes an exception for 0
    # Its environments take over the signals of their process, which are the run's.
    environment.signal = SimpleNamespace(signal=lambda *_: None, SIGINT=None, SIGTERM=None)
    with reraised(UserError, f"task.params.id={id} cannot be loaded by verifiers:"):
        load = functools.partial(vf.load_environment, id)
        env = (load_object(f"{id}:load_environment") if id.endswith(".py") else load)(**json.loads(args))
    if env.rubric.has_group_rewards:
        raise UserError(f"verifiers environment {id}: its rubric scores groups, which is not supported")
    return env, PolicyClient


@TASKS.register("verifiers")
def verifiers(*, sizes: SplitSizes, id: str, args: dict[str, Any] | None = None) -> TaskSet:
    """`id`: an installed environment, or the file of one; `args`: what its `load_environment` takes. Without
    an evaluation set of its own, rows of its training set are held out."""
    settings = {"id": absolute(id), "args": json.dumps(args or {}, sort_keys=True)}
    env, _ = _loaded(**settings)
    rows = [list(found or ()) for found in (env.build_dataset(), env.build_eval_dataset())]

    def forms(answer: str) -> list[str]:
        fields: list[str] = getattr(env.parser, "get_fields", list)()[-1:]
        return [answer, f"\\boxed{{{answer}}}", *(f"<{field}>\n{answer}\n</{field}>" for field in fields)]

    return from_rows("verifiers", settings, *rows, sizes=sizes, source=id, forms=forms)
