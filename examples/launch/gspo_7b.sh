#!/usr/bin/env bash
# GSPO with its paper's clip (3e-4 and 4e-4) and four minibatches a step (arXiv 2507.18071), on a dense 7B: the paper's
# own model is a mixture of 30B, whose batch it does not tell. Eight GPUs.
set -euo pipefail
: "${MODEL:?a Hugging Face folder}" "${TRAIN:?a Parquet file of tasks}"
exec toolwright train algorithm=gspo task=file task.train="$TRAIN" model.path="$MODEL" model.dtype=bfloat16 \
  rollout.prompts=64 rollout.samples=16 rollout.max_tokens=4096 \
  update.policy.lr=1e-6 model.gradient_checkpointing=true \
  runtime=ray runtime.placement.policy.ranks=4 engine=vllm train.steps=500 "$@"
