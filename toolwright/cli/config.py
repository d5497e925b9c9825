"""Show the resolved configuration, each value with where it came from.

Examples:
  toolwright config                                   what `toolwright train` would use
  toolwright config algorithm=grpo rollout.samples=16
  toolwright config sft model=small                   what `toolwright sft` would use
  toolwright config workflow                          what `toolwright workflow search` would use
  toolwright config --explain                         every key with what it is for
  toolwright config --json
  toolwright config > mine.yaml                       plain output is YAML
"""

from __future__ import annotations


def main(argv: list[str]) -> int:
    from toolwright.config.compose import PRIMARY
    from toolwright.config.launch import launch

    named = bool(argv) and argv[0] in PRIMARY
    command, rest = (argv[0], argv[1:]) if named else ("train", argv)
    usage = "config [train | sft | eval | workflow]"
    return launch(command, rest, about=__doc__ or "", start=None, usage=usage)
