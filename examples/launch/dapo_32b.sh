#!/usr/bin/env bash
# DAPO as its paper had it (arXiv 2503.14476): 32B, 512 questions × 16 answers of up to 20,480 tokens of which the last
# 4,096 are penalised, sixteen updates a step, clip 0.2 and 0.28, learning rate 1e-6 after 20 steps of warm-up.
# Four nodes of eight GPUs: the learner over sixteen, four engines of four.
set -euo pipefail
: "${MODEL:?a Hugging Face folder that all nodes see}" "${TRAIN:?a Parquet file of tasks}" "${RUNS:?a folder that all nodes see}"
exec toolwright train algorithm=dapo task=file task.train="$TRAIN" model.path="$MODEL" model.dtype=bfloat16 \
  rollout.prompts=512 rollout.samples=16 rollout.max_tokens=20480 \
  update.policy.lr=1e-6 update.policy.warmup_steps=320 update.policy.weight_decay=0.1 model.gradient_checkpointing=true \
  runtime=ray runtime.address=auto runtime.placement.policy.ranks=16 runtime.placement.rollout.workers=4 \
  engine=vllm engine.tensor_parallel_size=4 runtime.placement.rollout.gpus=4 engine.timeout_s=3600 \
  rollout.timeout_s=3600 run.dir="$RUNS" train.steps=300 "$@"
