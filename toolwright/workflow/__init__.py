"""Workflows: small typed programs over operators, their interpreter, and the search for the best one."""

from __future__ import annotations

from pathlib import Path


def search(*words: str) -> Path:
    """Search for the workflow that solves a data set best, as `toolwright workflow search` does. Returns the
    run folder.

    search("--config-name=quick", "search.runs=200")
    """
    from toolwright.config.from_words import from_words
    from toolwright.interface.event_loop import outside_event_loop
    from toolwright.workflow.launch import run

    with outside_event_loop():
        return run(from_words("workflow", words), command=["toolwright.workflow.search", *words])
