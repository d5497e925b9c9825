"""The curriculum: tasks that are solved now and then come most often, whatever a resume does in between."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwright.failures import UserError
from toolwright.tasks.order import Curriculum, TaskOrder, task_order
from toolwright.trajectory import Task


def tasks(*difficulties: object) -> list[Task]:
    return [
        Task(str(number), [], extra_info={} if difficulty is None else {"difficulty": difficulty})
        for number, difficulty in enumerate(difficulties)
    ]


@given(size=st.integers(1, 12), seed=st.integers(), counts=st.lists(st.integers(0, 30), max_size=6))
def test_no_task_twice_before_all_were_taken(size: int, seed: int, counts: list[int]) -> None:
    order = Curriculum(tasks(*[None] * size), seed)
    for count in counts:
        taken = order.take(count)
        assert len(taken) == count
        for start in range(0, count - size + 1, size):
            assert sorted(taken[start : start + size]) == list(range(size))
        order.record(taken[0] if taken else 0, [1.0, 0.0])


@given(
    seed=st.integers(),
    before=st.lists(st.tuples(st.integers(0, 5), st.floats(-2, 2)), max_size=8),
    after=st.lists(st.tuples(st.integers(0, 5), st.floats(-2, 2)), max_size=4),
)
def test_a_restored_curriculum_goes_on_where_it_was(
    seed: int, before: list[tuple[int, float]], after: list[tuple[int, float]]
) -> None:
    known = tasks("easy", "easy", 3, 3, None, [1, 2])
    order, resumed = Curriculum(known, seed), Curriculum(known, seed)
    for index, accuracy in before:
        order.take(2)
        order.record(index, [accuracy, 1.0])
    resumed.restore(json.loads(json.dumps(order.state())))
    for index, accuracy in after:
        assert order.take(3) == resumed.take(3)
        order.record(index, [accuracy])
        resumed.record(index, [accuracy])
    assert resumed.state() == order.state()


def test_what_is_solved_now_and_then_comes_most_often() -> None:
    order = Curriculum(tasks(*[None] * 9), seed=0)
    for index in range(9):
        for _ in range(4):
            order.record(index, [[1.0] * 8, [0.0] * 8, [1.0, 0.0] * 4][index % 3])
    drawn = Counter(index % 3 for _ in range(300) for index in order.take(2))
    assert drawn[2] > 2 * max(drawn[0], drawn[1])
    assert min(drawn.values()) > 10, "and the others stay in view"


def test_a_given_difficulty_tells_of_tasks_that_were_never_tried() -> None:
    order = Curriculum(tasks(*["easy"] * 4, *["hard"] * 4), seed=0)
    for _ in range(4):
        order.record(0, [1.0, 0.0])
        order.record(4, [0.0, 0.0])
    assert order.success(1) == pytest.approx(0.5)
    assert order.success(5) < 0.2
    for _ in range(12):
        order.record(4, [1.0, 1.0])
    assert order.success(5) > 0.7, "what was once too hard is seen to be so no more"


def test_a_checkpoint_of_another_order_is_refused() -> None:
    known = tasks(None, None)
    with pytest.raises(UserError, match="task order has order=epochs, this run has order=difficulty"):
        Curriculum(known, 0).restore(TaskOrder(2, 0).state())
    with pytest.raises(UserError, match="task order has order=difficulty, this run has order=epochs"):
        TaskOrder(2, 0).restore(Curriculum(known, 0).state())


@pytest.mark.parametrize(("given_with_tasks", "gain"), [(True, 1.8), (False, 1.1)])
def test_a_learner_gets_further_by_it(given_with_tasks: bool, gain: float) -> None:
    """One whose skill grows by groups that it solves in part, over levels that each need the one below."""

    def skill_after(name: str, seed: int) -> float:
        levels = [number % 10 for number in range(200)]
        known = tasks(*(level if given_with_tasks else None for level in levels))
        order, rng, skill = task_order(name, known, seed), random.Random(seed), 0.5
        for _ in range(60):
            for index in order.take(8):
                chance = min(max((skill - levels[index] + 1) / 2, 0.0), 1.0)
                solved = [float(rng.random() < chance) for _ in range(8)]
                order.record(index, solved)
                skill += 0.02 * (0 < sum(solved) < 8)
        return skill

    for seed in range(5):
        assert skill_after("difficulty", seed) > gain * skill_after("shuffled", seed)
