"""PPO with a critic on Ray: policy, critic, reward and rollout workers are actors, here or on a cluster.

    python examples/08_ppo_on_ray.py [STEPS] [WARM_STEPS]

Ray is started for the run and ends with it. `"runtime.address=auto"` joins a cluster instead; nothing else
changes. Rewards come on the way (a key is worth a quarter), which a critic can tell apart from the end.
"""

from __future__ import annotations

import sys

import toolwright as tw


def main(steps: int = 20, warm_steps: int = 60) -> None:
    world = ("task=gridworld", "task.params.key_reward=0.25")
    warm = tw.sft(*world, "task.params.noise=0.3", f"steps={warm_steps}")
    words = (
        "algorithm=ppo",
        "runtime=ray",
        f"train.steps={steps}",
        "update.critic_warmup=2",
        "eval.every=10",
    )
    with tw.Trainer(*world, *words, model=warm) as trainer:
        for step in trainer:
            shown = ("reward/mean", "critic/loss", "time/sample_s", "time/update_s")
            print(step.number, {name: round(step.metrics[name], 3) for name in shown if name in step.metrics})
    print(f"every role's stages are in {trainer.folder / 'timeline.json'}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
