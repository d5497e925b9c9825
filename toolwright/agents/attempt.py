"""An attempt in progress: everything an agent can do. Each act is appended to the trajectory."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

from toolwright.agents.formats.thinking import spoken
from toolwright.agents.prompt_cut import PromptCut
from toolwright.engines import Engine, Sampling
from toolwright.failures import TaskFailure, UserError
from toolwright.images import images_in, name_of, texts_of
from toolwright.models.tokenizer import Tokenizer, Written
from toolwright.trajectory import Segment, Source, Task, Trajectory

# More than any text has on average: tokens as long as this are runs of blanks.
CHARACTERS_A_TOKEN = 64
OTHER_SIDE = "/other"  # after an attempt's id, where the engine is asked for what is not recorded


class AttemptEnded(Exception):
    """The attempt has no tokens left. This is an ordinary end, and agents need not catch it."""


class Attempt:
    def __init__(
        self,
        trajectory: Trajectory,
        engine: Engine,
        tokenizer: Tokenizer,
        sampling: Sampling,
        *,
        max_turns: int,
        max_total_tokens: int | None = None,
        template: Mapping[str, Any] | None = None,
        cut: PromptCut | None = None,
    ) -> None:
        self.trajectory = trajectory
        self.max_turns = max_turns
        self.id = f"{trajectory.group}/{trajectory.index}"
        self.waits_for = ""  # who is being waited for, for the message when that takes too long
        self.limit: asyncio.Timeout | None = None  # of the whole attempt
        self.engine, self.tokenizer, self.sampling = engine, tokenizer, sampling
        self.most_tokens = min(filter(None, (max_total_tokens, engine.context)))
        self._template, self._cut = dict(template or {}), cut
        self._tools: Sequence[Mapping[str, Any]] | None = None
        self._asked = 0

    @property
    def task(self) -> Task:
        return self.trajectory.task

    @property
    def turns(self) -> int:
        return len(self.trajectory.steps)

    @property
    def length(self) -> int:
        """The number of tokens so far, from every source."""
        return sum(len(segment.tokens) for segment in self.trajectory.segments)

    @property
    def room(self) -> int:
        """The number of tokens that still fit, from any source."""
        return self.most_tokens - self.length

    @property
    def ended(self) -> bool:
        """True if the policy ended its turn itself, with an end-of-turn token."""
        segments = self.trajectory.segments
        last = segments[-1].tokens[-1:] if segments and segments[-1].source == "policy" else []
        return bool(last) and last[0] in self.tokenizer.end_tokens

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Open with these messages in the model's chat template. `tools` are the schemas that the template
        describes."""
        self._tools = tools
        if self._cut is None:
            self._must_fit(messages)
        written = self.tokenizer.opening(messages, tools=tools, **self._template)
        self._extend("prompt", written if self._cut is None else self._cut(written, self.tokenizer))

    def limit_response(self, tokens: int | None) -> None:
        """Limit the tokens that may follow, from any source. None allows as many as fit."""
        if tokens is not None:
            self.most_tokens = min(self.most_tokens, self.length + tokens)

    def observe(
        self, text: str, *, source: Source = "environment", write: Callable[[str], str] = str
    ) -> Segment:
        """Append an answer of the world in the middle of the policy's turn. It is context: nothing in it is
        learned, and its special tokens are plain text. `write` puts our own marks around it."""
        self._must_fit([{"content": text}])
        return self._extend(source, self.tokenizer.quote(text, write))

    def reply(self, messages: Sequence[Mapping[str, Any]], *, source: Source = "tool") -> Segment:
        """Append messages and open the policy's next turn in the chat template."""
        ended, tools = self.ended, self._tools
        self._must_fit(messages)
        return self._extend(
            source, self.tokenizer.continuation(messages, ended=ended, tools=tools, **self._template)
        )

    async def act(self, *, anchor: str | None = None, stop: Sequence[str] | None = None) -> Segment:
        """Let the policy take one step.

        `anchor` names the state in which it acts, for step-wise credit. The attempt ends if no token is left
        for the step.
        """
        if self.room < 1:
            self._out_of_tokens()
        started, room = time.perf_counter(), self.room
        sampling = self.sampling if stop is None else replace(self.sampling, stop=tuple(stop))
        if room < sampling.max_tokens:
            sampling = replace(sampling, max_tokens=room)
        with self.waiting("the engine"):
            answer = await self.engine.generate(
                self.trajectory.tokens, sampling, attempt=self.id, **self._seen()
            )
        segment = Segment("policy", answer.tokens, answer.log_probs, answer.text, anchor=anchor)
        self.trajectory.append(segment)
        cut = answer.stop == "length" and self.room < 1
        self.trajectory.stop = "tokens" if cut else answer.stop
        self.trajectory.weights_version = answer.weights_version
        self.spend("generate_s", time.perf_counter() - started)
        return segment

    async def ask(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Let the policy answer a conversation outside this attempt, for instance as its own opponent. None
        of it is recorded or learned from."""
        self._asked += 1
        tokens = self.tokenizer.opening(messages, **self._template).tokens
        room = min(self.sampling.max_tokens, self.most_tokens - len(tokens))
        if room < 1:
            raise TaskFailure(
                f"attempt {self.id}: its environment asks the policy {len(tokens)} tokens, which leaves no "
                f"room in the {self.most_tokens} that an attempt may have"
            )
        seed = seed_of(self.sampling.seed, "asked", self._asked)
        sampling = replace(self.sampling, max_tokens=room, seed=seed)
        line = f"{self.id}{OTHER_SIDE}"
        try:
            answer = await self.engine.generate(tokens, sampling, attempt=line)
        finally:
            self.engine.release(line)
        return spoken(answer.text)[0].strip()

    def finish(self, stop: str) -> None:
        """Set what ended the attempt: done, turns and so on. The agent then returns."""
        self.trajectory.stop = stop

    def count(self, name: str, amount: float = 1) -> None:
        """Count something worth reporting: tool_calls, tool_errors, format_faults and so on."""
        self.trajectory.counts[name] = self.trajectory.counts.get(name, 0) + amount

    def spend(self, name: str, seconds: float) -> None:
        """Add to the time of a stage: generate_s, tool_s and so on."""
        self.trajectory.timings[name] = self.trajectory.timings.get(name, 0.0) + seconds

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Name what the attempt waits for, so that an error at the time limit can say it."""
        self.waits_for = name
        yield
        self.waits_for = ""  # not where it was left by an exception: then it is asked for

    def restart_limit(self, seconds: float | None) -> None:
        """Restart the attempt's time limit, because it had to wait before it could begin. None: it has no
        limit, while it waits for others, which have limits of their own."""
        if self.limit is not None:
            now = asyncio.get_running_loop().time()
            self.limit.reschedule(None if seconds is None else now + seconds)

    def _seen(self) -> dict[str, Any]:
        """The images that the engine is given beside the tokens."""
        images = self.trajectory.images
        if images and "images" not in inspect.signature(self.engine.generate).parameters:
            raise UserError(
                f"the engine {type(self.engine).__name__} does not take images; engine.name=native does"
            )
        return {"images": images} if images else {}

    def _must_fit(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Refuse a text that cannot fit, before encoding it takes a hundred times its memory."""
        length = sum(len(text) for message in messages for text in texts_of(message.get("content")))
        if length <= self.most_tokens * CHARACTERS_A_TOKEN:
            return
        if not self.trajectory.steps:
            raise TaskFailure(
                f"attempt {self.id}: a prompt of {length:,} characters leaves no room in the "
                f"{self.most_tokens} tokens that an attempt may have; raise rollout.max_total_tokens or "
                "model.context"
            )
        self._out_of_tokens()

    def _extend(self, source: Source, written: Written) -> Segment:
        """Append a segment if it fits. If it does not, the attempt ends: the policy could say nothing
        more."""
        if self.trajectory.steps and len(written.tokens) > self.room:
            self._out_of_tokens()
        segment = Segment(source, written.tokens, text=written.text)
        if written.images:
            known = set(images_in(self.task.prompt))
            segment.images = [name_of(url) if url in known else url for url in written.images]
        self.trajectory.append(segment)
        return segment

    def _out_of_tokens(self) -> NoReturn:
        if not self.trajectory.steps:
            raise TaskFailure(
                f"attempt {self.id}: a prompt of {self.length} tokens leaves no room in the "
                f"{self.most_tokens} that an attempt may have; raise rollout.max_total_tokens or "
                "model.context"
            )
        self.finish("tokens")
        raise AttemptEnded


def seed_of(*parts: object) -> int:
    """Derive a seed from names alone, so that no seed has to be stored."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
