#!/usr/bin/env bash
# PPO as InstructGPT had it (arXiv 2203.02155): 512 prompts, one answer each, minibatches of 64, γ 1, λ 0.95, KL 0.02 in the
# reward, learning rate 9e-6 for policy and critic (its models of 1.3B and 6B). Eight GPUs.
set -euo pipefail
: "${MODEL:?a Hugging Face folder}" "${TRAIN:?a Parquet file of tasks}"
exec toolwright train algorithm=ppo task=file task.train="$TRAIN" model.path="$MODEL" model.dtype=bfloat16 \
  rollout.prompts=512 rollout.samples=1 rollout.max_tokens=1024 \
  update.policy.lr=9e-6 update.critic.lr=9e-6 update.policy.betas=[0.9,0.95] model.gradient_checkpointing=true \
  runtime=ray runtime.placement.policy.ranks=4 engine=vllm train.steps=500 "$@"
