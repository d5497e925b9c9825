"""A tiny model that was taught a few conversations by heart, so that a real one calls tools on demand."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch

from tests import tiny
from toolwright.agents.demonstration import Demonstrator
from toolwright.agents.formats.tags import Tags
from toolwright.models import huggingface
from toolwright.models.attention import PackedAttention
from toolwright.models.decoder import Decoder
from toolwright.models.tokenizer import Tokenizer
from toolwright.trajectory import Trajectory

CONTEXT = 512
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'},
}
ASKED: dict[str, Any] = {"role": "user", "content": "2+3?"}
LESSONS: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([ASKED, {"role": "assistant", "content": "I add.", "tool_calls": [CALL]},
      {"role": "tool", "content": "5", "tool_call_id": "call_1"},
      {"role": "assistant", "content": "It is 5."}], [ADD]),
    ([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello, world"}], []),
]  # fmt: skip


def teach(folder: Path, *, steps: int = 120) -> None:
    """A folder with a model that answers these with the likeliest tokens; anything else as it pleases."""
    tokenizer = Tokenizer.characters(string.printable)
    torch.manual_seed(0)
    decoder = Decoder(tiny.shape(vocab=tokenizer.size, context=CONTEXT, width=48, heads=4, head_dim=12))
    decoder.initialise(0)
    lessons = [Demonstrator(tokenizer, Tags(), tools).trajectory(0, said) for said, tools in LESSONS]
    optimiser = torch.optim.AdamW(decoder.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = sum((_surprise(decoder, lesson) for lesson in lessons), torch.zeros(()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    huggingface.save(decoder, folder)
    tokenizer.save(folder)


def _surprise(decoder: Decoder, lesson: Trajectory) -> torch.Tensor:
    tokens = torch.tensor(lesson.tokens)
    attend = PackedAttention([len(tokens)], torch.device("cpu"))
    logits = decoder.head(decoder.hidden(tokens, attend.positions, attend))
    place, learned = 0, []
    for segment in lesson.segments:
        if segment.source == "policy":
            learned += range(place, place + len(segment.tokens))
        place += len(segment.tokens)
    at = torch.tensor(learned)
    return torch.nn.functional.cross_entropy(logits[at - 1], tokens[at])
