#!/usr/bin/env bash
# A search agent as Search-R1 had it (arXiv 2503.09516): 7B, GRPO, 512 questions × 5 attempts, up to 4 turns of up to 500 tokens,
# three passages of a search, ten updates a step, learning rate 1e-6 after a warm-up over 0.285 of the steps, KL 0.001. SEARCH is the address of a retrieval server. Eight GPUs.
set -euo pipefail
: "${MODEL:?a Hugging Face folder}" "${TRAIN:?a Parquet file of questions}" "${SEARCH:?http://host:port/retrieve}"
exec toolwright train algorithm=grpo task=file task.train="$TRAIN" model.path="$MODEL" model.dtype=bfloat16 \
  tools.search.url="$SEARCH" tools.search.topk=3 rollout.tool_tokens=500 \
  rollout.prompts=512 rollout.samples=5 rollout.max_turns=4 rollout.max_tokens=500 algorithm.kl.coef=0.001 \
  update.minibatches=10 update.policy.lr=1e-6 update.policy.warmup_steps=1425 model.gradient_checkpointing=true \
  runtime=ray runtime.placement.policy.ranks=4 engine=vllm train.steps=500 "$@"
