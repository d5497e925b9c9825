"""Prompts that are too long, shortened token by token as verl's `data.truncation` has it."""

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
    """`side` is what is cut off, so that `most` tokens are left."""

    side: Side
    most: int

    @classmethod
    def of(cls, config: schema.TaskConfig) -> PromptCut | None:
        """The cut that the configuration asks for; None where long prompts are skipped or refused."""
        side = next((side for side in SIDES if side == config.long_prompts), None)
        return side and cls(side, require_number(config.max_prompt_tokens, "task.max_prompt_tokens"))

    def __call__(self, written: Written, tokenizer: Tokenizer) -> Written:
        """The prompt as the policy gets it. Its text is that of the tokens which are left."""
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
