"""Chooses the format that a model was taught: the one that its chat template writes, or else tags."""

from __future__ import annotations

from toolwright.agents.formats import FORMATS, CallFormat
from toolwright.agents.formats.hermes import Hermes
from toolwright.agents.formats.llama3 import Llama3
from toolwright.agents.formats.qwen3_coder import Qwen3Coder
from toolwright.agents.formats.tags import Tags
from toolwright.models.tokenizer import Tokenizer


@FORMATS.register("auto")
def auto(tokenizer: Tokenizer) -> CallFormat:
    source = tokenizer.chat.source if tokenizer.config.get("chat_template") else ""
    if "<function=" in source:
        return Qwen3Coder()
    if "<tool_call>" in source:
        return Hermes()
    return Llama3() if '"parameters": ' in source and "<|eot_id|>" in source else Tags()
