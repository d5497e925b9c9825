"""The order of tasks: every task once an epoch, and a resume that goes on exactly where it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwright.failures import UserError
from toolwright.tasks.order import TaskOrder

sizes = st.integers(1, 12)
takes = st.lists(st.integers(0, 30), max_size=8)


@given(size=sizes, seed=st.integers(), shuffle=st.booleans(), counts=takes)
def test_each_epoch_takes_each_task_once(size: int, seed: int, shuffle: bool, counts: list[int]) -> None:
    order = TaskOrder(size, seed, shuffle)
    taken = [index for count in counts for index in order.take(count)]
    assert len(taken) == sum(counts)
    for start in range(0, len(taken) - size + 1, size):
        assert sorted(taken[start : start + size]) == list(range(size))


@given(size=sizes, seed=st.integers(), counts=takes)
def test_the_order_does_not_depend_on_how_it_is_taken(size: int, seed: int, counts: list[int]) -> None:
    together = TaskOrder(size, seed).take(sum(counts))
    order = TaskOrder(size, seed)
    assert [index for count in counts for index in order.take(count)] == together


@given(size=sizes, seed=st.integers(), shuffle=st.booleans(), before=takes, after=takes)
def test_a_restored_order_goes_on_where_it_was(
    size: int, seed: int, shuffle: bool, before: list[int], after: list[int]
) -> None:
    order = TaskOrder(size, seed, shuffle)
    for count in before:
        order.take(count)
    resumed = TaskOrder(size, seed, shuffle)
    resumed.restore(json.loads(json.dumps(order.state())))
    assert [resumed.take(count) for count in after] == [order.take(count) for count in after]
    assert resumed.state() == order.state()


def test_an_epoch_that_is_just_done_continues_with_the_next() -> None:
    order = TaskOrder(4, seed=0)
    first = order.take(4)
    assert (order.epoch, order.position) == (1, 0)
    resumed = TaskOrder(4, seed=0)
    resumed.restore(order.state())
    assert resumed.take(4) == order.take(4) != first


def test_epochs_and_seeds_differ_and_unshuffled_order_is_the_files() -> None:
    order = TaskOrder(20, seed=0)
    assert order.take(20) != order.take(20)
    assert TaskOrder(20, seed=0).take(20) != TaskOrder(20, seed=1).take(20)
    assert TaskOrder(3, seed=0, shuffle=False).take(7) == [0, 1, 2, 0, 1, 2, 0]


def test_a_state_of_other_tasks_is_refused() -> None:
    state = TaskOrder(5, seed=0).state()
    with pytest.raises(UserError, match=r"size=5, this run has size=6"):
        TaskOrder(6, seed=0).restore(state)
    with pytest.raises(UserError, match="seed"):
        TaskOrder(5, seed=1).restore(state)
    with pytest.raises(UserError, match="no tasks"):
        TaskOrder(0, seed=0)
