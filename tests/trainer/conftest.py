"""Trainers that are closed when a test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from toolwright.trainer.loop import TrainingLoop

from .runs import configured

Build = Callable[..., TrainingLoop]


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
