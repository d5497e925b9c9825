"""Adds the commands that read the command lines of verl and TRL."""

ADDS = {
    "toolwright.trainer.main_ppo": {"main": "toolwright.verl.command:main"},
    "toolwright.cli": {
        "verl": "toolwright.verl.command:main_module",
        "trl": "toolwright.verl.trl_command:main",
    },
    "toolwright.tasks.builtin": {"dataset_class": "toolwright.verl.dataset_class:dataset_class"},
}
