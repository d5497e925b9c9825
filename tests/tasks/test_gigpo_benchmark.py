"""`benchmarks/gigpo.py`: what its warm start is shown, and how it counts."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import ModuleType

import pytest

from toolwright.tasks import load
from toolwright.tasks.builtin.gridworld import GridWorld
from toolwright.trajectory import Segment, Trajectory

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gigpo.py"


@pytest.fixture(scope="module")
def gigpo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gigpo_benchmark", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_random_walks_seldom_end_at_the_goal(gigpo: ModuleType) -> None:
    (level,) = load(gigpo.configured(*gigpo.TASK).task, seed=0).train
    rng, reached, visited = random.Random(0), 0, set[str]()
    for _ in range(20):
        world = GridWorld(level.extra_info["environment"]["level"], "place")
        seen = world.reset(level).text
        messages = gigpo.stroll(level, rng)
        assert 0 < len(messages) <= 2 * gigpo.TURNS
        for shown, said in zip(messages[::2], messages[1::2], strict=True):
            assert shown["content"] == seen
            visited.add(seen)
            outcome = world.step(said["content"])
            seen = outcome.text
        assert outcome.done or len(messages) == 2 * gigpo.TURNS
        reached += outcome.done
    assert len(visited) > 30, "it goes about the whole level"
    assert reached < 15, "it is not shown the way to the goal"


def test_the_difference_is_printed_with_its_interval(gigpo: ModuleType) -> None:
    # sd 3, so 4.30 × 3 / √3 = 7.4 to either side.
    told = gigpo.paired([2.0, 8.0, 5.0])
    assert told == "GiGPO ahead by 5.0 points, on 3 of 3 seeds; 95 % from -2.4 to 12.4"


def test_a_longer_way_to_the_goal_counts_less(gigpo: ModuleType) -> None:
    (level,) = load(gigpo.configured(*gigpo.TASK).task, seed=0).train
    way = len(GridWorld(level.extra_info["environment"]["level"], "place").solution() or [])
    attempts = [
        Trajectory(level, "g", segments=[Segment("policy", [1], [0.0])] * moves, counts={"success": reached})
        for moves, reached in [(way, 1), (2 * way, 1), (40, 0)]
    ]
    step = gigpo.seen(attempts)
    assert (step.success, step.spl) == (pytest.approx(2 / 3), pytest.approx(1.5 / 3))
