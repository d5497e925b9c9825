"""Processes for tests that need nothing of a command's own start: forks of one that has imported torch."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

# What each would import for itself. Modules of the tests cannot be named: it does not find their folder.
PRELOADED = [
    "toolwright.config.compose",
    "toolwright.trainer.loop",
    "toolwright.learner.sharded_checkpoints",
    "hypothesis",
    "pytest",
    "torch._dynamo",
    "transformers",
]


def forks() -> ForkServerContext:
    """One server for all tests of a process; whoever comes first starts it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
