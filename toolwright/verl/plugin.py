"""What reading verl's command lines adds to Toolwright."""

ADDS = {
    "toolwright.trainer.main_ppo": {"main": "toolwright.verl.command:main"},
    "toolwright.cli": {
        "verl": "toolwright.verl.command:main_module",
        "trl": "toolwright.verl.command:main_trl",
    },
    "toolwright.tasks.builtin": {"dataset_class": "toolwright.verl.dataset_class:dataset_class"},
}
