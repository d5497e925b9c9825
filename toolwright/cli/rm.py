"""Train a reward model from answers that were compared.

Examples:
  toolwright rm task.train=pairs.jsonl
  toolwright rm task.train=pairs.jsonl task.held_out=more.jsonl model.path=models/qwen run.name=rm
  toolwright rm run.name=rm run.resume=true
  toolwright train reward.function=reward_model reward.params.reward_model.path=runs/rm/model
"""

from __future__ import annotations


def main(argv: list[str]) -> int:
    from toolwright.config.launch import launch

    return launch("rm", argv, about=__doc__ or "", start="toolwright.trainer.reward_model:train")
