"""Warm-start a model on conversations, tool calls included.

Examples:
  toolwright sft
  toolwright sft task=arithmetic model=small steps=400
  toolwright sft demonstrations=conversations.jsonl run.name=warm
  toolwright train model.path=runs/warm/model         then train from it
"""

from __future__ import annotations


def main(argv: list[str]) -> int:
    from toolwright.config.launch import launch

    return launch("sft", argv, about=__doc__ or "", start="toolwright.trainer.supervised:train")
