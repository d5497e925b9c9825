"""Warm-start a model on conversations, tool calls included.

Examples:
  toolwright sft
  toolwright sft task=arithmetic model=small steps=400
  toolwright sft demonstrations=conversations.jsonl epochs=3 run.name=warm
  toolwright sft run.name=warm run.resume=true
  toolwright train model.path=runs/warm/model         then train from it
"""

from __future__ import annotations


def main(argv: list[str]) -> int:
    from toolwright.config.launch import launch

    return launch("sft", argv, about=__doc__ or "", start="toolwright.trainer.supervised:train")
