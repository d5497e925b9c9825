"""Keeps what a served model was asked and what it sampled, and the scores that callers post later."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from toolwright.engines import Completion, Sampling
from toolwright.engines.constraint import policy_segment
from toolwright.providers.local import LocalModel, PromptTokens
from toolwright.serve.problems import HttpProblem
from toolwright.serve.requests import FeedbackRequest
from toolwright.tasks.record_folder import Feedback, RecordFolder
from toolwright.trajectory import Segment, Task, Trajectory

WRITE_AFTER_S = 2.0
MOST_WAITING = 4096  # answers that are kept in memory while the disk refuses them
MOST_ENDINGS = 16_384  # answers that a later prompt may go on from
PRIME = (1 << 61) - 1
log = logging.getLogger("toolwright.serve")


def choice_id(id: str, number: int) -> str:
    """The id of one choice of an answer; the first has the answer's own."""
    return f"{id}/{number}" if number else id


class Recorder:
    """Answers are written a few seconds later at the most, scores at once."""

    def __init__(self, folder: Path, model: LocalModel, *, limit_mb: float) -> None:
        self.folder, self.model, self.limit = RecordFolder(folder), model, int(limit_mb * (1 << 20))
        self.folder.create()
        self.waiting: list[Trajectory] = []
        self._known = set(self.folder.answers())
        self._tokenizer = model.tokenizer.fingerprint
        self._base = secrets.randbelow(PRIME)
        self._endings: OrderedDict[int, str] = OrderedDict()  # all tokens up to an answer's end, hashed
        self._writer: asyncio.Task[None] | None = None

    def keep(self, id: str, prompt: PromptTokens, completion: Completion, sampling: Sampling) -> None:
        """Record an answer, and which earlier one its prompt goes on from."""
        parent, shared = self._parent(prompt.tokens)
        whole = [*prompt.tokens, *completion.tokens]
        about = {
            "parent": parent,
            "tokens": len(whole),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "model": self.model.name,
            "tokenizer": self._tokenizer,
        }
        text = self.model.tokenizer.decode(prompt.tokens[shared:])
        messages = [dict(message) for message in prompt.messages] or [{"role": "user", "content": text}]
        group = hashlib.blake2b(str(prompt.tokens).encode(), digest_size=8).hexdigest()
        answer = Trajectory(Task(id, messages, data_source="served", extra_info=about), group)
        answer.append(Segment("prompt", prompt.tokens, text=text))
        answer.append(policy_segment(self.model.tokenizer, sampling, completion))
        answer.stop = completion.stop
        self._endings[list(self._hashes(whole))[-1]] = id
        if len(self._endings) > MOST_ENDINGS:
            self._endings.popitem(last=False)
        self.waiting.append(answer)
        self._known.add(id)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_soon())

    async def feedback(self, request: FeedbackRequest) -> bytes:
        id = choice_id(request.id, request.choice)
        if id not in self._known:  # another server of this folder may have given it
            self._known |= await asyncio.to_thread(lambda: set(self.folder.answers()))
        if id not in self._known:
            raise HttpProblem(404, f"there is no answer {id!r} in the record", param="id")
        given = Feedback(id, request.score, request.text, request.scope, time.time())
        try:
            await asyncio.to_thread(self.folder.add_feedback, given)
        except OSError as error:
            raise HttpProblem(503, f"the score could not be written: {error.strerror}") from None
        return orjson.dumps({"object": "feedback", "id": id, "score": given.score, "scope": given.scope})

    async def close(self) -> None:
        """Write what is waiting."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        await self._write()

    async def _write_soon(self) -> None:
        while self.waiting:
            await asyncio.sleep(WRITE_AFTER_S)
            await asyncio.shield(self._write())

    async def _write(self) -> None:
        written, self.waiting = self.waiting, []
        if not written:
            return
        try:
            await asyncio.to_thread(self.folder.save, written, limit=self.limit)
        except OSError as error:
            self.waiting = [*written, *self.waiting][-MOST_WAITING:]
            log.error("%d answers could not be recorded yet: %s", len(self.waiting), error)

    def _parent(self, tokens: Sequence[int]) -> tuple[str | None, int]:
        """The answer whose tokens this prompt begins with, the longest of them, and how many those are."""
        found: tuple[str | None, int] = None, 0
        for count, known in enumerate(self._hashes(tokens), 1):
            if known in self._endings:
                found = self._endings[known], count
        return found

    def _hashes(self, tokens: Sequence[int]) -> Iterator[int]:
        """A hash of every prefix, by a polynomial with a secret base."""
        value = 1
        for token in tokens:
            value = (value * self._base + token + 1) % PRIME
            yield value
