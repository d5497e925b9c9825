"""Shortens prompts that are too long, token by token, like verl's `data.truncation`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toolwright.config import schema
from toolwright.config.block import require_number
from toolwright.failures import TaskFailure
from toolwright.models.tokenizer import Tokenizer, Written

Side = Literal["left", "right", "middle"]
SIDES: tuple[Side, ...] = ("left", "right", "middle")


@dataclass(frozen=True)
class PromptCut:
    """Cuts off tokens at `side`, so that `most` tokens are left."""

    side: Side
    most: int

    @classmethod
    def of(cls, config: schema.TaskConfig) -> PromptCut | None:
        """Return the configured cut, or None if long prompts are skipped or refused."""
        side = next((side for side in SIDES if side == config.long_prompts), None)
        return side and cls(side, require_number(config.max_prompt_tokens, "task.max_prompt_tokens"))

    def __call__(self, written: Written, tokenizer: Tokenizer) -> Written:
        """Return the prompt as the policy gets it. Its text is that of the remaining tokens."""
        tokens = written.tokens
        if len(tokens) <= self.most:
            return written
        if written.images:
            raise TaskFailure(
                f"a prompt with images has {len(tokens)} tokens, the limit is {self.most}, and an "
                "image cannot be cut; set task.long_prompts=skip"
            )
        head = {"left": 0, "right": self.most, "middle": self.most // 2}[self.side]
        kept = tokens[:head] + tokens[len(tokens) - (self.most - head) :]
        return Written(tokenizer.backend.decode(kept, skip_special_tokens=False), kept)
