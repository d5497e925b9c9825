"""`benchmarks/step_rewards.py`: its tasks pay on the way, and its table is of means with their intervals."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from toolwright.algorithms.needs import step_rewards
from toolwright.trainer.loop import TrainingLoop

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "step_rewards.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("step_rewards_benchmark", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("task", ["rooms", "errand", "gridworld"])
def test_the_steps_of_a_task_earn_its_reward(task: str, script: ModuleType) -> None:
    words = (*script.EQUAL, *script.OF_TASK[task], "algorithm=gigpo")
    trainer = TrainingLoop(script.configured(*words))
    try:
        sampled = trainer.sample(1)
    finally:
        trainer.close()
    assert not sampled.failures
    early = [t for t in sampled.trajectories if any(step.reward for step in t.steps[:-1])]
    assert early or task == "gridworld"  # which random weights seldom walk in
    for t in early:
        earned = step_rewards(t)
        assert earned[:-1] == [step.reward or 0.0 for step in t.steps[:-1]]
        assert sum(earned) == pytest.approx(t.reward)


def test_a_mean_is_shown_with_its_interval(script: ModuleType) -> None:
    # sd 3, so 4.30 × 3 / √3 = 7.45 to either side.
    assert script.interval([2.0, 8.0, 5.0]) == "5.00 ± 7.45"
    assert script.interval([0.5], sign="+") == "+0.50"
