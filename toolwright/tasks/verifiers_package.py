"""The package `verifiers` as its adapter needs it: environments, loaded once, and a client of a model."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from toolwright.failures import UserError
from toolwright.registry import load_object

FAULTS: contextvars.ContextVar[list[str]] = contextvars.ContextVar("FAULTS")  # of one attempt's rewards
_loading = threading.Lock()


@functools.cache
def policy_client() -> Callable[[Any], Any]:
    """verifiers' client of a model, whose model is the policy of an attempt."""
    from verifiers.clients import Client
    from verifiers.types import Response, ResponseMessage, ToolCall

    async def get_response(self: Any, prompt: Any, *_: Any, tools: Any = None, **__: Any) -> Response:
        text, calls = await self.client.ask(prompt, tools)
        called = [
            ToolCall(id=f"call_{number}", name=name, arguments=json.dumps(arguments))
            for number, (name, arguments) in enumerate(calls)
        ]
        end = "tool_calls" if called else "stop"
        message = ResponseMessage(
            content=text, tool_calls=called or None, finish_reason=end, is_truncated=False
        )
        return Response(id="policy", created=0, model="policy", message=message)

    unreached = dict.fromkeys(Client.__abstractmethods__)  # all of them serve the method that is replaced
    return type("PolicyClient", (Client,), {**unreached, "get_response": get_response})


@functools.cache
def event_loop() -> asyncio.AbstractEventLoop:
    """One loop for all verifiers environments of this process: what they share belongs to one."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="verifiers", daemon=True).start()
    return loop


def loaded(id: str, args: str) -> Any:
    with _loading:
        return _loaded(id, args)


@functools.cache
def _loaded(id: str, args: str) -> Any:
    try:
        import verifiers
        from verifiers.envs import environment
    except ImportError:
        raise UserError(
            "task 'verifiers' needs the package of that name with its `load_environment`, which it has up to "
            "0.2: pip install 'toolwright[verifiers]'"
        ) from None
    # Its environments take over the signals of their process, which are the run's.
    environment.signal = SimpleNamespace(signal=lambda *_: None, SIGINT=None, SIGTERM=None)
    try:
        if id.endswith(".py"):
            env = load_object(f"{id}:load_environment")(**json.loads(args))
        else:
            env = verifiers.load_environment(id, **json.loads(args))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"task.params.id={id} cannot be loaded by verifiers: {error}") from error
    if env.rubric.has_group_rewards:
        raise UserError(f"verifiers environment {id}: its rubric scores groups, which is not taken")
    rubrics = [env.rubric, *(one.rubric for one in getattr(env, "envs", ()))]
    while rubrics:
        rubric = rubrics.pop()
        rubric.funcs = [_noting(function) for function in rubric.funcs]
        rubrics += getattr(rubric, "rubrics", ())
    return env


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The reward, with its exceptions kept in FAULTS: verifiers' own rubric would take them for 0."""

    @functools.wraps(function)
    async def reward(*args: Any, **kwargs: Any) -> float:
        try:
            answer = function(*args, **kwargs)
            return float(await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:
            FAULTS.get().append(f"{type(error).__name__}: {error}")
            raise

    return reward
