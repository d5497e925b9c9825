#!/usr/bin/env bash
# GRPO as DeepSeekMath had it (arXiv 2402.03300): 7B, 16 questions × 64 answers of up to 1,024 tokens, one update a
# step, learning rate 1e-6, KL 0.04. Eight GPUs: the learner over four, a rollout worker on each of the others.
set -euo pipefail
: "${MODEL:?a Hugging Face folder}" "${TRAIN:?a Parquet file of tasks}"
exec toolwright train algorithm=grpo task=file task.train="$TRAIN" model.path="$MODEL" model.dtype=bfloat16 \
  rollout.prompts=16 rollout.samples=64 rollout.max_tokens=1024 \
  update.policy.lr=1e-6 model.gradient_checkpointing=true \
  runtime=ray runtime.placement.policy.ranks=4 engine=vllm train.steps=500 "$@"
