"""Warm-start a model on conversations, tool calls included.

Examples:
  toolwright sft
  toolwright sft task=arithmetic model=small steps=400
  toolwright sft demonstrations=conversations.jsonl run.name=warm
  toolwright train model.path=runs/warm/model         then train from it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolwright.config.schema import SupervisedConfig


def main(argv: list[str]) -> int:
    from toolwright.config.launch import launch

    return launch("sft", argv, about=__doc__ or "", start=start)


def start(config: SupervisedConfig, command: list[str]) -> None:
    from toolwright.trainer.supervised import train

    train(config, command=command)
