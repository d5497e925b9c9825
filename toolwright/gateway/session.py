"""One attempt as its program sees it: a model that answers, and a place to leave rewards and a result."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import orjson

from toolwright.agents.attempt import Attempt
from toolwright.agents.formats import CallFormat
from toolwright.config.agent_program import AgentProgram
from toolwright.config.schema import RolloutConfig
from toolwright.engines import Completion, Sampling, TokenCallback, generate_streamed
from toolwright.gateway.conversations import BranchPrompt, Conversations
from toolwright.providers.local import LocalModel, ParsedCompletion, PromptTokens
from toolwright.serve.app import Handler, endpoints
from toolwright.serve.openai import Outcome
from toolwright.serve.problems import HttpProblem
from toolwright.serve.requests import SampledBody
from toolwright.serve.service import ModelService

# Hints that a policy may or may not follow. Nothing here can force it, so they are left out of a request.
HINTS = ("parallel_tool_calls", "reasoning_effort", "reasoning", "thinking")
# Answers of one attempt that may be under way at the same time.
AT_ONCE = 256


class Session(ModelService):
    """The model of one attempt. What it samples is appended to the attempt's trajectory."""

    def __init__(
        self, attempt: Attempt, config: RolloutConfig, program: AgentProgram, call_format: CallFormat
    ) -> None:
        model = LocalModel(
            program.model,
            attempt.engine,
            attempt.tokenizer,
            call_format,
            tool_prompt=config.tool_prompt,
            template=config.template,
        )
        super().__init__(model, queue_limit=AT_ONCE)
        self.attempt, self.config, self.program = attempt, config, program
        self.conversations = Conversations(model, attempt.trajectory, attempt.sampling.seed)
        self.ended = False
        self.limit = ""  # which limit of the run refused a call, if any did
        self.refusal = ""  # the last call that was refused, and why
        self.result: Any = None  # as the program posted it
        self.finished = asyncio.Event()  # it has
        self.turns = 0  # begun
        self._calls = 0
        self._sampled: dict[int, Sampling] = {}  # how each completion was, until it is recorded
        self.post: dict[str, Handler] = {
            **{path: self._lenient(path, handler) for path, handler in endpoints(self).items()},
            "/v1/reward": self._reward,
            "/v1/result": self._result,
        }

    @property
    def context(self) -> int:
        return self.attempt.most_tokens

    def check_model(self, name: str) -> None:
        """Any name will do, and the answer repeats it: some clients compare the two."""

    def chat_prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> PromptTokens:
        self._check_size(messages, tools)
        try:
            prompt = self.conversations.prompt(messages, tools)
        except Exception as error:
            if isinstance(error, HttpProblem):
                raise
            raise HttpProblem(400, str(error), param="messages") from None
        return self._check_length(prompt, "messages")

    def raw_prompt(self, prompt: str | list[int]) -> PromptTokens:
        given = super().raw_prompt(prompt)
        return self._check_length(self.conversations.raw_prompt(prompt, given.tokens), "prompt")

    def sampling(self, body: SampledBody, *, max_tokens: int | None, **asked: Any) -> Sampling:
        """The run's sampling. A client may set only the length of an answer and its stops."""
        run = self.attempt.sampling
        own = super().sampling(body, max_tokens=max_tokens, **asked)
        chosen = replace(
            run,
            max_tokens=min(run.max_tokens, max_tokens or run.max_tokens),
            stop=(*run.stop, *own.stop),
            top=own.top,
            schema=own.schema,
        )
        if self.program.sampling == "agent":
            chosen = replace(chosen, temperature=own.temperature, top_p=own.top_p, top_k=own.top_k)
            if (chosen.temperature, chosen.top_p, chosen.top_k) != (run.temperature, run.top_p, run.top_k):
                self.attempt.trajectory.counts["own_sampling"] = 1
                self.attempt.trajectory.counts["temperature"] = chosen.temperature
        return chosen

    def close(self) -> None:
        """Refuse further calls, and free what the engine keeps for this attempt."""
        self.ended = True
        attempt, found = self.attempt, self.conversations
        for root in range(found.roots):
            attempt.engine.release(self._line(root))
        for name, value in (("branches", found.branches), ("rewritten", found.rewritten)):
            attempt.count(name, value)

    def _too_long(self, tokens: str, param: str) -> NoReturn:
        self._limit_reached("tokens")
        super()._too_long(tokens, param)

    async def _generate(
        self, prompt: PromptTokens, sampling: Sampling, on_token: TokenCallback | None
    ) -> Completion:
        assert isinstance(prompt, BranchPrompt)
        self._count_turn()
        started, attempt = time.perf_counter(), self.attempt
        engine, line = self.model.engine, self._line(prompt.place.root)
        sampling = replace(sampling, seed=prompt.place.next_seed())
        completion = await generate_streamed(engine, prompt.tokens, sampling, attempt=line, on_token=on_token)
        if self.ended:
            engine.release(line)
            raise HttpProblem(403, "this attempt is over", code="attempt_over")
        self._sampled[id(completion)] = sampling
        attempt.spend("generate_s", time.perf_counter() - started)
        return completion

    def _parsed(self, prompt: PromptTokens, completion: Completion, stop: Sequence[str]) -> ParsedCompletion:
        """Read the completion and record it at once: whatever the client does next, it was sampled."""
        assert isinstance(prompt, BranchPrompt)
        parsed = super()._parsed(prompt, completion, stop)
        numbered = []
        for call in parsed.calls:  # ids that follow from the attempt alone
            numbered.append(replace(call, id=f"call{self._calls:05d}"))
            self._calls += 1
        parsed = replace(parsed, calls=tuple(numbered))
        self.conversations.record(prompt.place, self._sampled.pop(id(completion)), completion, parsed)
        attempt = self.attempt
        attempt.count("tool_calls", len(numbered))
        full = completion.stop == "length" and len(prompt.tokens) + len(completion.tokens) >= self.context
        attempt.finish("tokens" if full else completion.stop)
        attempt.trajectory.weights_version = completion.weights_version
        return parsed

    def _count_turn(self) -> None:
        if self.turns >= self.attempt.max_turns:
            self._limit_reached("turns")
            raise HttpProblem(
                403,
                f"this attempt has taken its {self.attempt.max_turns} turns (rollout.max_turns)",
                code="attempt_over",
            )
        self.turns += 1

    def _limit_reached(self, name: str) -> None:
        """A limit of the run ends the attempt as it ends one of our own agents': that is no failure."""
        if self.conversations.turns:
            self.limit = self.limit or name

    def _line(self, root: int) -> str:
        """The name under which the engine keeps the cache of a conversation."""
        return f"{self.attempt.id}#{root}" if root else self.attempt.id

    def _lenient(self, path: str, handler: Handler) -> Handler:
        """Make the model's name optional, and leave out fields that are only hints."""
        free: Any = {"type": "auto"} if path.startswith("/v1/messages") else "auto"

        async def answer(raw: Any) -> Outcome:
            if isinstance(raw, dict):
                raw = {key: value for key, value in raw.items() if key not in HINTS}
                raw["model"] = raw.get("model") or self.model.name
                if _forces(raw.get("tool_choice")):
                    raw["tool_choice"] = free
            return await handler(raw)

        return answer

    async def _reward(self, raw: Any) -> Outcome:
        """`{"reward": 1.0}` for the last turn, or with `"turn": 2` for that one, counted from 0."""
        value, turn = (raw.get("reward"), raw.get("turn")) if isinstance(raw, dict) else (None, None)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise HttpProblem(400, f"reward: expected a number, found {value!r}", param="reward")
        steps = self.attempt.trajectory.steps
        place = len(steps) - 1 if turn is None else turn
        if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < len(steps):
            raise HttpProblem(
                400, f"turn: expected one of the {len(steps)} so far, found {turn!r}", param="turn"
            )
        steps[place].reward = (steps[place].reward or 0.0) + value
        return b'{"status":"ok"}'

    async def _result(self, raw: Any) -> Outcome:
        """Any JSON: what the program leaves for the reward."""
        self.result = raw
        self.finished.set()
        return orjson.dumps({"status": "ok"})


def _forces(choice: Any) -> bool:
    if isinstance(choice, Mapping):
        return choice.get("type") not in ("auto", "none")
    return choice == "required"
