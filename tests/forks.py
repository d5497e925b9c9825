"""Processes for tests that need nothing of a command's own start: forks of one that has imported torch."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

PRELOADED = ["toolwright.trainer.loop", "toolwright.learner.sharded_checkpoints", "tiny"]


def forks() -> ForkServerContext:
    """One server for all tests of a process; whoever comes first starts it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
