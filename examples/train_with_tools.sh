#!/usr/bin/env bash
# A verl command line for agents that search or run code: search on → search rollout; else tools on → tool rollout;
# else plain. Further words are passed on, and the last one counts:
#
#   MODEL=model TRAIN=train.parquet TEST=test.parquet examples/train_with_tools.sh --fit
#   ENABLE_TOOLS=true TOOL_SERVER_URL=http://127.0.0.1:30003 MAX_TOOL_TURNS=3 … examples/train_with_tools.sh --show
#
# A tool server on that port: toolwright sandbox serve --port 30003
set -euo pipefail

: "${MODEL:?a Hugging Face folder}" "${TRAIN:?a Parquet file of training tasks}"
ENABLE_SEARCH=${ENABLE_SEARCH:-false}
SEARCH_URL=${SEARCH_URL:-http://127.0.0.1:8000/retrieve}
ENABLE_TOOLS=${ENABLE_TOOLS:-false}
TOOL_SERVER_URL=${TOOL_SERVER_URL:-http://127.0.0.1:30003}
MAX_TOOL_TURNS=${MAX_TOOL_TURNS:-3}

words=(
  algorithm.adv_estimator=grpo
  data.train_files="$TRAIN"
  data.train_batch_size="${BATCH:-64}"
  data.filter_overlong_prompts=True
  actor_rollout_ref.model.path="$MODEL"
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.ppo_mini_batch_size="${BATCH:-64}"
  actor_rollout_ref.rollout.n=8
  trainer.project_name=train_with_tools
  trainer.experiment_name="${NAME:-plain}"
)
if [[ -n ${TEST:-} ]]; then
  words+=(data.val_files="$TEST" trainer.test_freq=10)
fi
if [[ $ENABLE_SEARCH == true ]]; then
  words+=(
    actor_rollout_ref.rollout.enable_search=true
    actor_rollout_ref.rollout.search_url="\"$SEARCH_URL\""
    actor_rollout_ref.rollout.max_turns=$((MAX_TOOL_TURNS + 1))
  )
fi
# Both may be on: which one goes first is decided where verl decides it, by the rollout.
if [[ $ENABLE_TOOLS == true ]]; then
  words+=(
    actor_rollout_ref.rollout.tool_config.enabled=true
    actor_rollout_ref.rollout.tool_config.server_url="\"$TOOL_SERVER_URL\""
    actor_rollout_ref.rollout.tool_config.max_tool_turns="$MAX_TOOL_TURNS"
    actor_rollout_ref.rollout.tool_config.max_retries=3
    actor_rollout_ref.rollout.tool_config.retry_delay=1.0
    actor_rollout_ref.rollout.tool_config.timeout=30.0
    actor_rollout_ref.rollout.tool_config.max_workers=10
    actor_rollout_ref.rollout.tool_config.request_interval=0.1
  )
fi
exec "${PYTHON:-python3}" -m toolwright.trainer.main_ppo "${words[@]}" "$@"
