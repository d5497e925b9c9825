#!/usr/bin/env bash
# GiGPO as its paper had it for WebShop (arXiv 2505.10978): 1.5B, 16 tasks × 8 attempts, up to 15 turns of up to 512 tokens,
# learning rate 1e-6, KL 0.01, γ 0.95. TASK is an environment: `shop`, which is built in, or path.py:name. One GPU.
set -euo pipefail
: "${MODEL:?a Hugging Face folder}"
exec toolwright train algorithm=gigpo task="${TASK:-shop}" model.path="$MODEL" model.dtype=bfloat16 \
  rollout.prompts=16 rollout.samples=8 rollout.max_turns=15 rollout.max_tokens=512 model.context=16384 \
  task.max_prompt_tokens=4096 update.policy.lr=1e-6 model.gradient_checkpointing=true train.steps=150 "$@"
