"""What an attempt leaves behind: it only grows, and it is kept without loss."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import trajectory

from toolwright.record import load, save
from toolwright.trajectory import (
    Failure,
    Group,
    Segment,
    Source,
    Task,
    Trajectory,
    as_groups,
    finite_number,
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
number = st.floats(allow_nan=False, width=64)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
tallies = st.dictionaries(text, number, max_size=3)
tasks = st.builds(
    Task,
    id=text,
    prompt=st.lists(st.dictionaries(text, json_value, max_size=2), max_size=2),
    ground_truth=json_value,
    data_source=text,
    extra_info=st.dictionaries(text, json_value, max_size=2),
)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    source: Source = draw(st.sampled_from(["prompt", "policy", "tool", "environment"]))
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), max_size=6))
    count = len(tokens) if source == "policy" else 0
    return Segment(
        source,
        tokens,
        draw(st.lists(number, min_size=count, max_size=count)),
        draw(text),
        reward=draw(st.none() | number),
        anchor=draw(st.none() | text),
    )


trajectories = st.builds(
    Trajectory,
    task=tasks,
    group=text,
    index=st.integers(0, 2**31 - 1),
    seed=st.integers(0, 2**63 - 1),
    segments=st.lists(segments(), max_size=4),
    reward=st.none() | number,
    reward_parts=tallies,
    stop=text,
    counts=tallies,
    timings=tallies,
    weights_version=st.integers(0, 2**40),
    failure=st.none() | st.builds(Failure, st.sampled_from(["infrastructure", "task"]), text),
)


class TestATrajectoryGrows:
    def test_every_sampled_token_has_a_log_probability(self) -> None:
        attempt = trajectory([("prompt", [1, 2])])
        with pytest.raises(ValueError, match="2 tokens, 1 log-probabilities"):
            attempt.append(Segment("policy", [3, 4], [-0.5]))
        assert attempt.tokens == [1, 2], "what was refused left no trace"

    @pytest.mark.parametrize("source", ["prompt", "tool", "environment"])
    def test_what_was_not_sampled_has_none(self, source: Source) -> None:
        with pytest.raises(ValueError, match=f"a {source} segment was not sampled"):
            trajectory([]).append(Segment(source, [3], [-0.5]))

    def test_tokens_come_in_order_and_the_mask_says_which_the_policy_sampled(self) -> None:
        attempt = trajectory([("prompt", [1, 2]), ("policy", [3]), ("tool", [4, 5]), ("policy", [6, 7])])
        assert attempt.tokens == [1, 2, 3, 4, 5, 6, 7]
        assert attempt.mask == [False, False, True, False, False, True, True]
        assert attempt.sampled_tokens == 3

    def test_a_step_is_one_turn_of_the_policy(self) -> None:
        attempt = trajectory([("prompt", [1]), ("policy", [2]), ("environment", [3]), ("policy", [4, 5])])
        assert [step.tokens for step in attempt.steps] == [[2], [4, 5]]

    def test_changing_what_was_read_changes_nothing(self) -> None:
        attempt = trajectory([("prompt", [1]), ("policy", [2])])
        attempt.tokens.append(9)
        attempt.mask.append(True)
        assert attempt.tokens == [1, 2]
        assert attempt.mask == [False, True]

    def test_the_response_is_all_that_was_said_after_the_prompt(self) -> None:
        attempt = trajectory([])
        attempt.append(Segment("prompt", [1], text="2+2?"))
        attempt.append(Segment("policy", [2], [-1.0], text="let me see: "))
        attempt.append(Segment("tool", [3], text="4 "))
        attempt.append(Segment("policy", [4], [-1.0], text="it is 4"))
        assert attempt.response == "let me see: 4 it is 4"

    @given(st.lists(segments(), max_size=5))
    @settings(derandomize=True, max_examples=30, deadline=None)
    def test_growing_never_changes_what_was_there(self, parts: list[Segment]) -> None:
        attempt = trajectory([])
        for part in parts:
            before, mask = attempt.tokens, attempt.mask
            attempt.append(part)
            assert attempt.tokens == before + part.tokens
            assert attempt.mask == mask + [part.source == "policy"] * len(part.tokens)
        assert attempt.sampled_tokens == sum(attempt.mask)


class TestAGroupIsWholeOrNotUsed:
    def test_one_failed_attempt_makes_it_incomplete(self) -> None:
        good, bad = trajectory([], group="g"), trajectory([], group="g")
        assert Group(good.task, [good, bad]).complete
        bad.failure = Failure("task", "no ground truth")
        group = Group(good.task, [good, bad])
        assert not group.complete
        assert group.failures == [bad]

    def test_an_empty_one_is_not_complete(self) -> None:
        assert not Group(Task("t", []), []).complete

    def test_attempts_are_gathered_by_group_in_order_of_appearance(self) -> None:
        attempts = [trajectory([], group=name) for name in "abacb"]
        groups = as_groups(attempts)
        assert [g.trajectories for g in groups] == [
            [attempts[0], attempts[2]],
            [attempts[1], attempts[4]],
            [attempts[3]],
        ]


class TestParquet:
    @given(st.lists(trajectories, max_size=3))
    @settings(
        derandomize=True,
        max_examples=60,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    def test_whatever_is_saved_is_loaded_as_it_was(self, tmp_path: Path, attempts: list[Trajectory]) -> None:
        save(tmp_path / "rollouts.parquet", attempts)
        assert load(tmp_path / "rollouts.parquet") == attempts

    def test_log_probabilities_keep_every_bit(self, tmp_path: Path) -> None:
        values = [-0.1, -1 / 3, -5e-324, -math.pi, -math.inf]
        attempt = trajectory([("prompt", [1])])
        attempt.append(Segment("policy", [1, 2, 3, 4, 5], values))
        save(tmp_path / "one.parquet", [attempt])
        assert load(tmp_path / "one.parquet")[0].segments[1].log_probs == values

    def test_a_score_of_nan_is_not_a_missing_one(self, tmp_path: Path) -> None:
        attempt = trajectory([])
        attempt.reward = math.nan
        save(tmp_path / "one.parquet", [attempt])
        (loaded,) = load(tmp_path / "one.parquet")
        assert loaded.reward is not None
        assert math.isnan(loaded.reward)

    def test_others_can_read_it_column_by_column(self, tmp_path: Path) -> None:
        attempt = trajectory([])
        attempt.append(Segment("prompt", [1], text="2+2?"))
        attempt.append(Segment("policy", [2], [-1.0], text="4"))
        attempt.reward = 1.0
        save(tmp_path / "one.parquet", [attempt])
        row: dict[str, Any] = pq.read_table(tmp_path / "one.parquet", columns=["reward", "response"])
        assert row["reward"].to_pylist() == [1.0]
        assert row["response"].to_pylist() == ["4"]

    def test_lengths_and_questions_can_be_read_without_tokens(self, tmp_path: Path) -> None:
        asked = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2\n + 2?" + "x" * 900}]
        spoken = [{"role": "user", "content": [{"type": "text", "text": "3 + 3?"}]}]
        attempts = [Trajectory(Task("t", asked), "g"), Trajectory(Task("u", spoken), "h")]
        attempts.append(Trajectory(Task("v", []), "i"))
        attempts[0].append(Segment("prompt", [1, 2, 3]))
        attempts[0].append(Segment("policy", [4, 5], [-1.0, -1.0]))
        attempts[0].append(Segment("tool", [6]))
        attempts[0].append(Segment("policy", [7], [-1.0]))
        attempts[1].append(Segment("policy", [8], [-1.0]))
        save(tmp_path / "two.parquet", attempts)
        columns = ["question", "turns", "sampled_tokens"]
        table = pq.read_table(tmp_path / "two.parquet", columns=columns).to_pydict()
        assert table["question"] == ["2 + 2?" + "x" * 194, "3 + 3?", ""]
        assert table["turns"] == [2, 1, 0]
        assert table["sampled_tokens"] == [3, 1, 0]
        assert load(tmp_path / "two.parquet") == attempts

    def test_an_attempt_of_many_lies_in_a_small_part_of_the_file(self, tmp_path: Path) -> None:
        attempts = [trajectory([("prompt", [1]), ("policy", [number])]) for number in range(600)]
        save(tmp_path / "many.parquet", attempts)
        assert pq.ParquetFile(tmp_path / "many.parquet").num_row_groups == 3
        assert load(tmp_path / "many.parquet") == attempts
        rows = [599, 0, 300, 299, 599]
        assert load(tmp_path / "many.parquet", rows) == [attempts[row] for row in rows]
        with pytest.raises(ValueError, match="no row 600 among 600"):
            load(tmp_path / "many.parquet", [600])

    def test_a_file_that_cannot_be_written_leaves_the_old_one_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "step.parquet"
        save(path, [trajectory([("prompt", [1])])])
        before = path.read_bytes()

        def full_disk(table: Any, where: Path, **_: Any) -> None:
            where.write_bytes(b"PAR1 half a file")
            raise OSError("no space left on device")

        monkeypatch.setattr(pq, "write_table", full_disk)
        with pytest.raises(OSError, match="no space left"):
            save(path, [trajectory([("prompt", [1, 2, 3])])])
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.array(0.25), 0.25),
        (torch.tensor(0.5), 0.5),
        (np.bool_(True), 1.0),
        *((none, None) for none in (None, "1", [1.0], np.array([0.5]), math.nan, -math.inf, 1e39, 10**400)),
    ],
)
def test_a_reward_may_be_any_number_that_float32_can_hold(value: object, number: float | None) -> None:
    found = finite_number(value)
    assert found == number
    assert type(found) in (float, type(None))
