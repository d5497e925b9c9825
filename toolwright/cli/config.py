"""Show the resolved configuration, each value with where it came from.

Examples:
  toolwright config                                   what `toolwright train` would use
  toolwright config algorithm=grpo rollout.samples=16
  toolwright config sft model=small                   what `toolwright sft` would use
  toolwright config workflow                          what `toolwright workflow search` would use
  toolwright config --explain                         every key with what it is for, and what auto would be
  toolwright config --json
  toolwright config > mine.yaml                       plain output is YAML
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolwright.config.block import Block


def main(argv: list[str]) -> int:
    from toolwright.config.compose import commands
    from toolwright.config.launch import launch

    named = bool(argv) and argv[0] in commands()
    command, rest = (argv[0], argv[1:]) if named else ("train", argv)
    usage = f"config [{' | '.join(commands())}]"
    return launch(
        command,
        rest,
        about=__doc__ or "",
        start=None,
        usage=usage,
        describe_auto=lambda c: auto_lines(command, c),
    )


def auto_lines(command: str, config: Block) -> Sequence[str]:
    """Describe what a run on this machine would decide for `auto`."""
    from toolwright.config.schema import Config, SupervisedConfig
    from toolwright.failures import UserError

    if not isinstance(config, Config | SupervisedConfig):
        return []
    if "auto" not in (config.model.context, config.rollout.max_tokens):
        return []  # the descriptions explain the other values, without a second's wait for torch
    try:
        if isinstance(config, SupervisedConfig):
            from toolwright.tools.settings import settings_of
            from toolwright.trainer import supervised

            return supervised.prepare(config, settings_of(config.model_dump())).decided.lines
        from toolwright.trainer.preparation import prepare

        return prepare(config, learns=command != "eval").decided
    except UserError as error:
        return [f"the values of auto are not known yet: {' '.join(str(error).split())}"]
