"""An attempt under way: what an agent can do, each act of which is appended to its trajectory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from toolwright.engines import Engine, Sampling
from toolwright.models.tokenizer import Tokenizer
from toolwright.trajectory import Segment, Source, Task, Trajectory


class Attempt:
    def __init__(
        self,
        trajectory: Trajectory,
        engine: Engine,
        tokenizer: Tokenizer,
        sampling: Sampling,
        *,
        max_turns: int,
        environment_timeout_s: float = 30.0,
    ) -> None:
        self.trajectory = trajectory
        self.max_turns = max_turns
        self.environment_timeout_s = environment_timeout_s
        self.id = f"{trajectory.group}/{trajectory.index}"
        self._engine, self._tokenizer, self._sampling = engine, tokenizer, sampling

    @property
    def task(self) -> Task:
        return self.trajectory.task

    @property
    def turns(self) -> int:
        return len(self.trajectory.steps)

    def prompt(self, messages: Sequence[dict[str, Any]]) -> None:
        """Open with these messages, as the model's chat template writes them."""
        self._extend("prompt", self._tokenizer.render(messages))

    def observe(self, text: str, *, source: Source = "environment") -> None:
        """Append what the world answered. It is context: nothing is learned on it."""
        self._extend(source, text)

    def reply(self, messages: Sequence[dict[str, Any]], *, source: Source = "environment") -> bool:
        """Answer the policy's turn and open its next. False, and nothing said, where no room is left to act."""
        text = self._tokenizer.render(messages)
        tokens = self._tokenizer.encode(text)
        last = self.trajectory.tokens[-1:]
        if last and last[0] not in self._tokenizer.end_tokens:
            tokens = [self._tokenizer.end, *tokens]
        limit = getattr(self._engine, "context", None)
        if limit is not None and len(self.trajectory.tokens) + len(tokens) >= limit:
            return False
        self.trajectory.append(Segment(source, tokens, text=text))
        return True

    async def act(self, *, anchor: str | None = None, stop: Sequence[str] | None = None) -> Segment:
        """Let the policy take one step. `anchor` names the state it is taken in, for step-wise credit."""
        started = time.perf_counter()
        sampling = self._sampling if stop is None else replace(self._sampling, stop=tuple(stop))
        answer = await self._engine.generate(self.trajectory.tokens, sampling, attempt=self.id)
        segment = Segment("policy", answer.tokens, answer.log_probs, answer.text, anchor=anchor)
        self.trajectory.append(segment)
        self.trajectory.stop = answer.stop
        self.trajectory.weights_version = answer.weights_version
        timings = self.trajectory.timings
        timings["generate_s"] = timings.get("generate_s", 0.0) + time.perf_counter() - started
        return segment

    def count(self, name: str, amount: float = 1) -> None:
        """Count something worth knowing: tool_calls, tool_errors, format_faults, …"""
        self.trajectory.counts[name] = self.trajectory.counts.get(name, 0) + amount

    def _extend(self, source: Source, text: str) -> None:
        self.trajectory.append(Segment(source, self._tokenizer.encode(text), text=text))
