"""How long a run is: verl's epochs of a file as steps, and the updates in each."""

from __future__ import annotations

from toolwright.verl.asked import VerlConfig
from toolwright.verl.table.data import minibatches, prompts, training_tasks

STEPS, EPOCHS = "trainer.total_training_steps", "trainer.total_epochs"


def steps(asked: VerlConfig) -> int:
    """As set, or the whole batches of an epoch × epochs. verl drops what is left over at an epoch's end."""
    if asked[STEPS] is not None:
        return asked.number(STEPS)
    return max(1, training_tasks(asked) // prompts(asked)) * asked.number(EPOCHS)


def updates(asked: VerlConfig) -> int:
    """Optimiser updates a step."""
    return minibatches(asked) * asked.number("actor_rollout_ref.actor.ppo_epochs")
