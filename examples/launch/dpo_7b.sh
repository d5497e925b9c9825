#!/usr/bin/env bash
# DPO as its paper had it (arXiv 2305.18290): 64 pairs a step, β 0.1, learning rate 1e-6 after 150 steps of warm-up; here with
# AdamW and a 7B model. Nothing is sampled, so that there are no rollout workers. Eight GPUs.
set -euo pipefail
: "${MODEL:?a Hugging Face folder}" "${PAIRS:?a file of prompt, chosen, rejected}"
exec toolwright train algorithm=dpo task=preferences task.train="$PAIRS" model.path="$MODEL" model.dtype=bfloat16 \
  rollout.prompts=64 update.policy.lr=1e-6 update.policy.warmup_steps=150 model.gradient_checkpointing=true \
  runtime=ray runtime.placement.policy.ranks=8 train.steps=1000 "$@"
