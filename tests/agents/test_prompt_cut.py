"""Prompts that are too long, cut as verl cuts them."""

from __future__ import annotations

import pytest

from tests import tiny
from toolwright.agents.prompt_cut import PromptCut, Side
from toolwright.config import schema
from toolwright.models.tokenizer import Written


@pytest.mark.parametrize(("side", "left"), [("left", "56789"), ("right", "01234"), ("middle", "01789")])
def test_a_long_prompt_loses_one_side(side: Side, left: str) -> None:
    tokenizer = tiny.characters()
    digits = tokenizer.encode("0123456789")
    kept = PromptCut(side, 5)(Written("0123456789", digits), tokenizer)
    assert (kept.text, kept.tokens) == (left, tokenizer.encode(left))


def test_a_short_prompt_stays_as_it_is() -> None:
    tokenizer = tiny.characters()
    written = Written("012", tokenizer.encode("012"))
    assert PromptCut("left", 3)(written, tokenizer) is written


def test_prompts_are_cut_only_if_the_configuration_says_so() -> None:
    assert PromptCut.of(schema.TaskConfig(long_prompts="skip", max_prompt_tokens=8)) is None
    asked = schema.TaskConfig(long_prompts="middle", max_prompt_tokens=8)
    assert PromptCut.of(asked) == PromptCut("middle", 8)
