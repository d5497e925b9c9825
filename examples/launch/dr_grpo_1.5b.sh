#!/usr/bin/env bash
# Dr. GRPO as its paper had it (arXiv 2503.20783): 1.5B, 128 questions × 8 answers of up to 3,000 tokens, learning rate
# 1e-6, no reference. One GPU: the native engine over the learner's own weights.
set -euo pipefail
: "${MODEL:?a Hugging Face folder}" "${TRAIN:?a Parquet file of tasks}"
exec toolwright train algorithm=dr_grpo task=file task.train="$TRAIN" model.path="$MODEL" model.dtype=bfloat16 \
  rollout.prompts=128 rollout.samples=8 rollout.max_tokens=3000 \
  update.policy.lr=1e-6 model.gradient_checkpointing=true train.steps=400 "$@"
