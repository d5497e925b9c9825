"""The conversations of one attempt: a tree of the tokens that the policy was shown and that it sampled.

A request whose messages continue a turn that the policy took keeps that turn's tokens, and only what is new
is written. Any other request opens a branch, at the last turn that it has in common with what is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolwright.agents.attempt import seed_of
from toolwright.agents.formats import offered_by
from toolwright.engines import Completion, Sampling
from toolwright.engines.constraint import policy_segment
from toolwright.gateway.messages import MessageKey, call_key, tools_key
from toolwright.models.tokenizer import Written
from toolwright.providers.local import LocalModel, ParsedCompletion, PromptTokens, plain_message
from toolwright.trajectory import ROOT, Segment, Source, Trajectory

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]


@dataclass(eq=False)
class SampledTurn:
    """A turn that the policy took, and the conversation up to its end."""

    messages: tuple[MessageKey, ...]
    tools: str
    tokens: list[int]
    segment: int  # of the trajectory
    seed: int
    root: int
    ended: bool  # with an end-of-turn token
    text: str = ""  # of the sequence so far, for prompts that are plain text
    continued: bool = False  # something goes on from it


@dataclass(eq=False)
class OpenPrompt:
    """A prompt that the policy is asked to continue. It may be asked several times."""

    before: SampledTurn | None
    messages: tuple[MessageKey, ...]
    tools: str
    new: Written  # after `before`
    source: Source
    root: int
    seed: int
    prefix: str = ""  # of the turn that is sampled, where the client wrote its beginning
    asked: int = 0
    segment: int | None = None  # of the trajectory, once something was sampled from it
    records: list[dict[str, Any]] = field(default_factory=list)  # of the calls that it answers

    @property
    def tokens(self) -> list[int]:
        return [*(self.before.tokens if self.before else ()), *self.new.tokens]

    def next_seed(self) -> int:
        """The seed of the next answer. A client that asks again gets another answer."""
        self.asked += 1
        return self.seed if self.asked == 1 else seed_of(self.seed, "again", self.asked)


@dataclass(frozen=True)
class BranchPrompt(PromptTokens):
    """A prompt, and where in the attempt it stands."""

    place: OpenPrompt = None  # type: ignore[assignment]


class Conversations:
    """`seed`: the attempt's seed. The first conversation uses it as it is, others mix in their tokens."""

    def __init__(self, model: LocalModel, trajectory: Trajectory, seed: int) -> None:
        self.model, self.trajectory, self.seed = model, trajectory, seed
        self.turns: list[SampledTurn] = []
        self.roots = 0
        self.rewritten = 0  # turns that came back in other words of the same meaning
        self._open: dict[tuple[Any, ...], OpenPrompt] = {}

    @property
    def branches(self) -> int:
        """Sequences beyond the first."""
        return len(self.trajectory.sequences) - 1 if self.trajectory.segments else 0

    def prompt(self, messages: Sequence[Message], tools: Tools) -> BranchPrompt:
        """The tokens that a chat request continues."""
        plain = [plain_message(message) for message in messages]
        keys, offered = tuple(MessageKey.of(message) for message in plain), tools_key(tools)
        before = self._latest(keys, offered)
        new = (before, keys[len(before.messages) if before else 0 :], offered)
        place = self._open.get(new)
        if place is None and before is not None:
            place = self._open[new] = self._going_on(before, plain, keys, tools)
        elif place is None:
            place = self._open[new] = self._opening(plain, keys, tools)
        thinking = place.new.text.rstrip().endswith("<think>")
        return BranchPrompt(place.tokens, offered_by(tools), thinking, place.new.text, place=place)

    def raw_prompt(self, prompt: str | list[int], tokens: list[int]) -> BranchPrompt:
        """The same for a request of plain text, given as `tokens`."""
        before = self._latest_raw(prompt, tokens)
        if before is not None and isinstance(prompt, str):
            text = prompt[len(before.text) :]
            tokens = [*before.tokens, *self.model.tokenizer.encode_inside(text)]
        key = (before, tuple(tokens))
        if key not in self._open:
            new = tokens[len(before.tokens) if before else 0 :]
            text = prompt if isinstance(prompt, str) else self._written(tokens)
            written = Written(text[len(before.text) if before else 0 :], new)
            self._open[key] = self._place(before, (), "raw", written, "environment")
        return BranchPrompt(tokens, {}, place=self._open[key])

    def record(
        self, place: OpenPrompt, sampling: Sampling, completion: Completion, parsed: ParsedCompletion
    ) -> Segment:
        """Append what was sampled to the trajectory, after what it was sampled from."""
        if place.segment is None:
            before = place.before.segment if place.before else ROOT
            self._append(Segment(place.source, place.new.tokens, text=place.new.text), before)
            place.segment = len(self.trajectory.segments) - 1
            self.trajectory.segments[place.segment].calls = place.records
        segment = policy_segment(self.model.tokenizer, sampling, completion)
        self._append(segment, place.segment)
        calls = tuple(call_key(call.name, call.arguments) for call in parsed.calls)
        said = MessageKey("assistant", place.prefix + parsed.text, calls)
        text = place.new.text if place.before is None else place.before.text + place.new.text
        self.turns.append(
            SampledTurn(
                messages=(*place.messages, said),
                tools=place.tools,
                tokens=[*place.tokens, *completion.tokens],
                segment=len(self.trajectory.segments) - 1,
                seed=sampling.seed,
                root=place.root,
                ended=completion.stop == "eos",
                text=text + completion.text,
            )
        )
        return segment

    def _append(self, segment: Segment, parent: int) -> None:
        """Append a segment. Its parent is recorded only if it is not the segment before it."""
        segment.parent = None if parent == len(self.trajectory.segments) - 1 else parent
        self.trajectory.append(segment)

    def _latest(self, keys: tuple[MessageKey, ...], tools: str) -> SampledTurn | None:
        """The longest conversation that these messages continue; the last one if there are several."""
        found: SampledTurn | None = None
        for turn in self.turns:
            length = len(turn.messages)
            fits = turn.tools == tools and length < len(keys) and keys[length].role != "assistant"
            if not fits or (found is not None and length < len(found.messages)):
                continue
            if all(key.means(said) for key, said in zip(keys, turn.messages, strict=False)):
                found = turn
        if found is not None and keys[: len(found.messages)] != found.messages:
            self.rewritten += 1
        return found

    def _latest_raw(self, prompt: str | list[int], tokens: list[int]) -> SampledTurn | None:
        found: SampledTurn | None = None
        for turn in self.turns:
            if turn.tools != "raw" or (found is not None and len(turn.tokens) < len(found.tokens)):
                continue
            if isinstance(prompt, str):  # text cannot continue after an end of turn, which is not text
                goes_on = not turn.ended and len(prompt) > len(turn.text) and prompt.startswith(turn.text)
            else:
                goes_on = len(tokens) > len(turn.tokens) and tokens[: len(turn.tokens)] == turn.tokens
            if goes_on:
                found = turn
        return found

    def _opening(
        self, messages: list[dict[str, Any]], keys: tuple[MessageKey, ...], tools: Tools
    ) -> OpenPrompt:
        rendered = self.model.render(messages, tools)
        text = self._written(rendered.tokens)
        prefix = keys[-1].text if keys[-1].role == "assistant" and not keys[-1].calls else ""
        known = keys[:-1] if prefix else keys
        place = self._place(None, known, tools_key(tools), Written(text, rendered.tokens), "prompt")
        place.prefix = prefix
        return place

    def _going_on(
        self,
        before: SampledTurn,
        messages: list[dict[str, Any]],
        keys: tuple[MessageKey, ...],
        tools: Tools,
    ) -> OpenPrompt:
        """What follows a turn of the policy: messages of others, and turns that a client made up."""
        model, length = self.model, len(before.messages)
        rest = messages[length:]
        only_tools = all(message["role"] == "tool" for message in rest)
        prefix = ""
        if only_tools and model.format.inline and not before.ended:
            parts = [model.tokenizer.quote(str(m["content"]), model.format.result) for m in rest]
        else:
            parts, ended = [], before.ended
            described = self._described(tools)
            for between, turn in _by_turn(rest):
                parts.append(
                    model.tokenizer.continuation(between, ended=ended, tools=described, **model.template)
                )
                if turn is None:
                    break
                if turn is rest[-1] and not turn.get("tool_calls"):  # the beginning of the policy's own
                    prefix = text = turn["content"]
                else:
                    text = model.demonstrator(tools).turn(turn, tools=described)
                parts.append(Written(text, model.tokenizer.encode_inside(text)))
                ended = True
        text = "".join(part.text for part in parts)
        written = Written(text, [token for part in parts for token in part.tokens])
        known = (*before.messages, *keys[length : -1 if prefix else None])
        source: Source = "tool" if only_tools else "environment"
        place = self._place(before, known, before.tools, written, source)
        place.prefix = prefix
        if only_tools:
            calls = before.messages[-1].calls
            place.records = [{"name": name, "arguments": arguments} for name, arguments in calls]
        return place

    def _place(
        self,
        before: SampledTurn | None,
        messages: tuple[MessageKey, ...],
        tools: str,
        new: Written,
        source: Source,
    ) -> OpenPrompt:
        """The first continuation keeps its seed, as with our own agents; others get a seed of their own."""
        digest = hashlib.blake2b(repr(new.tokens).encode(), digest_size=8).hexdigest()
        if before is not None:
            seed = seed_of(before.seed, digest) if before.continued else before.seed
            before.continued = True
            return OpenPrompt(before, messages, tools, new, source, before.root, seed)
        root, self.roots = self.roots, self.roots + 1
        seed = seed_of(self.seed, digest) if root else self.seed
        return OpenPrompt(None, messages, tools, new, "prompt", root, seed)

    def _described(self, tools: Tools) -> Tools | None:
        """The tools, where the chat template describes them."""
        takes = not self.model.format.inline and self.model.tokenizer.chat.takes_tools
        return tools if tools and takes else None

    def _written(self, tokens: Sequence[int]) -> str:
        return str(self.model.tokenizer.backend.decode(list(tokens), skip_special_tokens=False))


def _by_turn(messages: Sequence[dict[str, Any]]) -> list[tuple[list[dict[str, Any]], dict[str, Any] | None]]:
    """Group messages by the assistant's turn that follows them; the last group may have none."""
    found: list[tuple[list[dict[str, Any]], dict[str, Any] | None]] = []
    between: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "assistant":
            found.append((between, message))
            between = []
        else:
            between.append(message)
    return [*found, (between, None)] if between else found
