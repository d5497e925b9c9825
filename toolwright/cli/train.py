"""Train by reinforcement learning.

Examples:
  toolwright train
  toolwright train algorithm=grpo task=arithmetic rollout.samples=16 train.steps=200
  toolwright train algorithm=dpo task=preferences task.train=pairs.jsonl
  toolwright train --dry-run model=small              what would run, each value with its origin
  toolwright train --config-dir conf --config-name mine
  toolwright train --multirun run.seed=0,1,2 update.policy.lr=1e-3,3e-4
  toolwright train run.name=NAME run.resume=true      resume a run, from its own configuration
"""

from __future__ import annotations


def main(argv: list[str]) -> int:
    from toolwright.config.launch import launch

    return launch("train", argv, about=__doc__ or "", start="toolwright.trainer.loop:train")
