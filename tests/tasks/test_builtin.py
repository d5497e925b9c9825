"""The built-in tasks: learnable prompts, right demonstrations, splits that never overlap."""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.rewards import Scorer
from toolwright.tasks import TASKS, TaskSet, load
from toolwright.trajectory import Segment, Task, Trajectory

GENERATED = ["arithmetic", "digits", "reverse", "sort", "countdown"]
PLAYED = ["gridworld", "gymnasium", "shop", "sokoban"]  # tested with their environments


def built(name: str, *, seed: int = 0, size: int = 64, held_out: int = 32, **params: object) -> TaskSet:
    return load(
        schema.TaskConfig(name=name, params=params, train_size=size, held_out_size=held_out), seed=seed
    )


def prompts(tasks: object) -> list[str]:
    return [task.prompt[-1]["content"] for task in tasks]


def scores(tasks: TaskSet, *, answers: random.Random) -> list[float | None]:
    """What the task's own scorer gives for its own demonstrations."""
    attempts = []
    for task in [*tasks.train, *tasks.held_out]:
        (message,) = tasks.demonstrate(task, answers)
        attempts.append(Trajectory(task, "g", segments=[Segment("environment", [], text=message["content"])]))
    asyncio.run(Scorer(schema.Reward(), default=tasks.scorer).score(attempts))
    return [attempt.reward for attempt in attempts]


@pytest.mark.parametrize("name", GENERATED)
def test_every_built_in_works_with_its_defaults(name: str) -> None:
    tasks = load(schema.TaskConfig(name=name), seed=0)
    assert len(tasks.held_out) == 128
    assert len(tasks.train) > 500
    assert set(scores(tasks, answers=random.Random(0))) == {1.0}


@pytest.mark.parametrize("name", GENERATED)
@given(seed=st.integers(0, 2**40))
@settings(max_examples=10, deadline=None)
def test_held_out_tasks_are_never_trained_on(name: str, seed: int) -> None:
    tasks = built(name, seed=seed)
    train, held_out = prompts(tasks.train), prompts(tasks.held_out)
    assert len({*train, *held_out}) == len(train) + len(held_out) == 96


@pytest.mark.parametrize("name", GENERATED)
def test_prompts_and_answers_stay_within_the_alphabet(name: str) -> None:
    tasks = built(name)
    for task in [*tasks.train, *tasks.held_out]:
        answer = tasks.demonstrate(task, random.Random(0))[0]["content"]
        assert set(prompts([task])[0] + answer) <= set(tasks.alphabet)
        assert len(prompts([task])[0]) <= 16


@pytest.mark.parametrize("name", GENERATED)
def test_the_seed_decides_the_tasks(name: str) -> None:
    assert built(name, seed=1).train == built(name, seed=1).train
    assert prompts(built(name, seed=1).held_out) != prompts(built(name, seed=2).held_out)


@pytest.mark.parametrize("name", GENERATED)
def test_the_held_out_tasks_do_not_depend_on_the_size_of_training(name: str) -> None:
    assert built(name, size=10).held_out == built(name, size=200).held_out


@pytest.mark.parametrize("name", GENERATED)
def test_imperfect_demonstrations_are_wrong_at_the_chosen_rate(name: str) -> None:
    assert set(scores(built(name, error_rate=1.0), answers=random.Random(0))) == {0.0}
    some = scores(built(name, size=200, error_rate=0.3), answers=random.Random(0))
    assert 0.6 < sum(some) / len(some) < 0.8


@pytest.mark.parametrize("name", GENERATED)
def test_task_ids_are_unique_and_the_same_in_every_process(name: str) -> None:
    tasks = built(name, size=8, held_out=8)
    ids = [task.id for task in [*tasks.train, *tasks.held_out]]
    assert len(set(ids)) == 16
    code = (
        "from toolwright.config import schema; from toolwright.tasks import load\n"
        f"t = load(schema.TaskConfig(name={name!r}, train_size=8, held_out_size=8), seed=0)\n"
        "print([task.id for task in [*t.train, *t.held_out]])"
    )
    if name == "countdown":  # the one whose tasks hold random choices of their own
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert other.stdout.strip() == str(ids)


def test_a_small_space_is_split_to_the_last_task() -> None:
    tasks = load(schema.TaskConfig(params={"max_operand": 3}, held_out_size=15), seed=0)
    assert (len(tasks.train), len(tasks.held_out)) == (1, 15)
    assert len(set(prompts([*tasks.train, *tasks.held_out]))) == 16


def test_holding_out_more_than_there_is_says_how_many_there_are() -> None:
    with pytest.raises(UserError, match=r"held_out_size=128 .* 100 tasks"):
        load(schema.TaskConfig(params={"max_operand": 9}), seed=0)
    with pytest.raises(UserError, match=r"train_size=80 .* 100 tasks .* 50 are held out"):
        built("arithmetic", size=80, held_out=50, max_operand=9)


@given(
    alphabet=st.sets(st.sampled_from("abcde"), min_size=2),
    lengths=st.tuples(st.integers(1, 3), st.integers(0, 1)),
    held_out=st.integers(1, 20),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_strings_are_split_without_overlap_whatever_the_space(
    alphabet: set[str], lengths: tuple[int, int], held_out: int, seed: int
) -> None:
    shortest, longest = lengths[0], lengths[0] + lengths[1]
    size = sum(len(alphabet) ** length for length in range(shortest, longest + 1))
    params = {"alphabet": "".join(sorted(alphabet)), "min_length": shortest, "max_length": longest}
    config = schema.TaskConfig(name="reverse", params=params, held_out_size=held_out)
    if held_out >= size:
        with pytest.raises(UserError, match=f"there are {size:,} tasks"):
            load(config, seed=seed)
        return
    tasks = load(config, seed=seed)
    everything = prompts(tasks.train) + prompts(tasks.held_out)
    assert len(set(everything)) == len(everything) == size


def test_lengths_are_drawn_evenly_though_most_strings_are_long() -> None:
    tasks = built("sort", size=300, held_out=30, min_length=1, max_length=6)
    count = [sum(len(task.ground_truth) == length for task in tasks.train) for length in range(1, 7)]
    assert count[0] == 5  # the other half of the ten is held out
    assert min(count[1:]) >= 45


def test_a_space_too_large_to_count_in_a_machine_word_is_still_split() -> None:
    tasks = built("reverse", min_length=40, max_length=40)
    assert len({*prompts(tasks.train), *prompts(tasks.held_out)}) == 96


def test_arithmetic_knows_its_operators_and_precedence() -> None:
    tasks = built("arithmetic", size=500, operators="+-*", terms=3, max_operand=12)
    for task in tasks.train:
        assert int(task.ground_truth) == eval(prompts([task])[0].rstrip("="))  # ours, not a model's
    assert {c for prompt in prompts(tasks.train) for c in prompt} == set("0123456789+-*=")


def test_digits_continue_the_pattern_that_is_shown() -> None:
    tasks = built("digits", length=5, answer=3, period=1, size=40, min_step=-4, max_step=4)
    for task in tasks.train:
        shown = [int(c) for c in prompts([task])[0].rstrip("?") + task.ground_truth]
        assert len(shown) == 8
        assert len({(b - a) % 10 for a, b in itertools.pairwise(shown)}) == 1


def test_countdown_gives_numbers_and_a_target_in_range() -> None:
    tasks = built("countdown", numbers=4, max_number=9, max_target=50)
    for task in tasks.train:
        truth = task.ground_truth
        assert len(truth["numbers"]) == 4
        assert all(1 <= number <= 9 for number in truth["numbers"])
        assert 1 <= truth["target"] <= 50
        assert prompts([task]) == [f"{' '.join(map(str, truth['numbers']))}={truth['target']}"]


@given(
    numbers=st.integers(2, 6),
    max_number=st.integers(5, 60),
    extra=st.integers(0, 100),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_countdown_is_always_solvable_by_its_demonstration(
    numbers: int, max_number: int, extra: int, seed: int
) -> None:
    tasks = built(
        "countdown",
        seed=seed,
        size=8,
        held_out=4,
        numbers=numbers,
        max_number=max_number,
        max_target=numbers * max_number + extra,
    )
    assert set(scores(tasks, answers=random.Random(seed))) == {1.0}


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        (
            "arithmetic",
            {"max_operands": 9},
            "no setting task.params.max_operands; did you mean 'max_operand'",
        ),
        ("arithmetic", {"max_operand": 0}, "max_operand=0 must be above min_operand=0"),
        ("arithmetic", {"operators": "/"}, "operators='/' must be one or more of"),
        ("arithmetic", {"terms": 1}, "terms=1 does not work: .*greater than or equal to 2"),
        ("arithmetic", {"terms": "many"}, "terms='many' does not work: .*integer"),
        ("arithmetic", {"error_rate": 2}, "error_rate=2 does not work: .*less than or equal to 1"),
        ("arithmetic", {"seed": 3}, "set by the run"),
        ("digits", {"length": 2}, "period=2 needs at least 3 digits"),
        ("digits", {"min_step": -9}, "one to ten steps"),
        ("reverse", {"min_length": 6}, "min_length=6 <= max_length=5"),
        ("reverse", {"alphabet": "aab"}, "at least two different"),
        ("sort", {"alphabet": "ab<"}, "neither spaces nor '<'"),
        ("countdown", {"max_target": 10}, "at least numbers × max_number = 60"),
        ("file", {"anything": 1}, "known: answer, images, interactions, prompt"),
    ],
)
def test_a_wrong_setting_is_a_clear_error(name: str, params: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(schema.TaskConfig(name=name, params=params), seed=0)


def test_an_unknown_task_and_a_file_for_a_generated_one_are_errors() -> None:
    with pytest.raises(UserError, match="unknown task 'sudoku'; known: agentdojo, alfworld, arithmetic"):
        load(schema.TaskConfig(name="sudoku"), seed=0)
    with pytest.raises(UserError, match=r"task.train names a file"):
        load(schema.TaskConfig(train="tasks.jsonl"), seed=0)


def test_the_registry_is_one_file_a_task() -> None:
    assert TASKS.names() == sorted(
        [
            *(*GENERATED, *PLAYED, "file", "none", "preferences", "recorded", "sums", "textworld"),
            # Of packages that are extras:
            *("agentdojo", "alfworld", "bfcl", "openenv", "reasoning_gym", "textarena", "verifiers"),
            "dataset_class",  # of a plugin
        ]
    )


USERS_TASK = """
from toolwright.tasks import TaskSet
from toolwright.trajectory import Task

def parity(seed, largest: int, odd: str = "odd"):
    tasks = [
        Task(f"parity:{n}", [{"role": "user", "content": str(n)}], odd if n % 2 else "even")
        for n in range(largest)
    ]
    return TaskSet(train=tasks[2:], held_out=tasks[:2], scorer="exact", alphabet="0123456789devno")

def nothing():
    return []
"""


def test_a_users_builder_is_named_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(USERS_TASK)
    config = schema.TaskConfig(name=f"{file}:parity", params={"largest": 12}, train_size=3)
    tasks = load(config, seed=0)
    assert prompts(tasks.train) == ["2", "3", "4"]
    assert isinstance(tasks.held_out[0], Task)
    with pytest.raises(UserError, match=r"needs the setting task.params.largest"):
        load(schema.TaskConfig(name=f"{file}:parity"), seed=0)
    with pytest.raises(UserError, match="largest='x' does not work"):
        load(schema.TaskConfig(name=f"{file}:parity", params={"largest": "x"}), seed=0)
    with pytest.raises(UserError, match="built a list, not a"):
        load(schema.TaskConfig(name=f"{file}:nothing"), seed=0)


def test_tasks_and_rewards_import_without_torch() -> None:
    code = (
        "import sys, toolwright.tasks, toolwright.rewards, toolwright.cli.data\n"
        "toolwright.tasks.TASKS.names(); toolwright.rewards.SCORERS.names()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
