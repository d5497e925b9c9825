#!/usr/bin/env bash
# VAPO as its paper had it (arXiv 2504.05118): 32B, 512 questions × 16 answers, sixteen updates a step, learning rate 1e-6 for
# the policy and 2e-6 for the critic, which learns alone for 50 steps. Four nodes of eight GPUs.
set -euo pipefail
: "${MODEL:?a Hugging Face folder that all nodes see}" "${TRAIN:?a Parquet file of tasks}" "${RUNS:?a folder that all nodes see}"
exec toolwright train algorithm=vapo task=file task.train="$TRAIN" model.path="$MODEL" model.dtype=bfloat16 \
  rollout.prompts=512 rollout.samples=16 rollout.max_tokens=20480 \
  update.policy.lr=1e-6 update.critic.lr=2e-6 update.critic_warmup=50 model.gradient_checkpointing=true \
  runtime=ray runtime.address=auto runtime.placement.policy.ranks=16 runtime.placement.rollout.workers=4 \
  engine=vllm engine.tensor_parallel_size=4 runtime.placement.rollout.gpus=4 engine.timeout_s=3600 \
  rollout.timeout_s=3600 run.dir="$RUNS" train.steps=300 "$@"
