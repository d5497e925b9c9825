"""Blocks of verl's that have no room here: profilers, Ray, queues, distillation."""

from __future__ import annotations

from toolwright.verl.row import KeyRow, refused, unused

PROFILER = "there is no profiler; metrics.jsonl has the time of every stage"

ROWS: list[KeyRow] = [
    *(
        unused(f"{role}profiler.*", PROFILER)
        for role in (
            "actor_rollout_ref.actor.",
            "actor_rollout_ref.ref.",
            "actor_rollout_ref.rollout.",
            "critic.",
            "reward_model.",
            "global_",
        )
    ),
    unused("actor_rollout_ref.hybrid_engine", "policy and native engine share their weights"),
    unused("actor_rollout_ref.nccl_timeout", "one process, so nothing to wait for"),
    unused("ray_kwargs.*", "roles live in this process"),
    unused("ray_init.*", "roles live in this process"),
    unused("transfer_queue.*", "trajectories stay in this process"),
    refused("skip.*", "attempts are always sampled"),
    refused("distillation.*", "there is no distillation from a teacher"),
]
