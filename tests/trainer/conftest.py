"""Trainers that are closed when a test ends, and registries that are left as they were."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from toolwright.rewards import SCORERS
from toolwright.trainer.loop import TrainingLoop

from .runs import configured

Build = Callable[..., TrainingLoop]


@pytest.fixture(scope="module", autouse=True)
def registry() -> Iterator[None]:
    """The tests' own task files register their scorers; other rooms' tests count what is registered."""
    SCORERS.names()
    before = dict(SCORERS._entries)
    yield
    SCORERS._entries = before
    for name in [name for name in sys.modules if name.startswith("toolwright_user_")]:
        del sys.modules[name]


@pytest.fixture
def build() -> Iterator[Build]:
    """A small trainer with the settings that a test says."""
    made: list[TrainingLoop] = []

    def one(*own: str, task: str = "letters") -> TrainingLoop:
        made.append(TrainingLoop(configured(*own, task=task)))
        return made[-1]

    yield one
    for trainer in made:
        trainer.close()
