#!/usr/bin/env bash
# PPO as InstructGPT had it (arXiv 2203.02155): 512 prompts, one answer each, minibatches of 64, γ 1, KL 0.02 in the reward,
# warm-up over 10 steps, learning rate 9e-6 for the critic. The policy's rate and λ are ours: the paper tried rates from
# 2.55e-6 to 2.55e-5, saw those above 8.05e-6 diverge, and does not tell which it took. Eight GPUs.
set -euo pipefail
: "${MODEL:?a Hugging Face folder}" "${TRAIN:?a Parquet file of tasks}"
exec toolwright train algorithm=ppo task=file task.train="$TRAIN" model.path="$MODEL" model.dtype=bfloat16 \
  rollout.prompts=512 rollout.samples=1 rollout.max_tokens=1024 \
  update.policy.lr=5e-6 update.policy.warmup_steps=80 update.critic.lr=9e-6 update.critic.warmup_steps=80 \
  update.policy.betas=[0.9,0.95] model.gradient_checkpointing=true \
  runtime=ray runtime.placement.policy.ranks=4 engine=vllm train.steps=500 "$@"
