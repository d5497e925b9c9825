"""Trajectories as tensors: whichever way a batch is cut, every action keeps its token, step and numbers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import trajectory

from toolwright.batch import Batch, partition
from toolwright.trajectory import Source, Trajectory

quick = settings(max_examples=40, deadline=None, derandomize=True)
tokens = st.lists(st.integers(0, 99), max_size=5)
sources = st.sampled_from(["prompt", "policy", "tool", "environment"])


@st.composite
def layouts(draw: st.DrawFn) -> Trajectory:
    """Any order of any segments, empty ones too, after a prompt and with something sampled."""
    between: list[tuple[Source, list[int]]] = draw(st.lists(st.tuples(sources, tokens), max_size=4))
    opening = draw(st.lists(st.integers(0, 99), min_size=1, max_size=4))
    closing = draw(st.lists(st.integers(0, 99), min_size=1, max_size=4))
    name = draw(st.sampled_from("abc"))
    return trajectory([("prompt", opening), *between, ("policy", closing)], group=name)


batches = st.lists(layouts(), min_size=1, max_size=6)


def same(one: Batch, other: Batch) -> None:
    assert one.lengths == other.lengths
    assert one.action_lengths == other.action_lengths
    assert one.group == other.group
    for name in ("tokens", "actions", "steps"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0)
    assert one.columns.keys() == other.columns.keys()
    for name, column in one.columns.items():
        torch.testing.assert_close(column, other.columns[name], rtol=0, atol=0)


class TestPacking:
    def test_sequences_lie_end_to_end_and_actions_point_at_what_was_sampled(self) -> None:
        batch = Batch.pack(
            [
                trajectory(
                    [("prompt", [10, 11]), ("policy", [12]), ("tool", [13, 14]), ("policy", [15, 16])]
                ),
                trajectory([("prompt", [20]), ("policy", [21])], group="h"),
            ]
        )
        assert batch.tokens.tolist() == [10, 11, 12, 13, 14, 15, 16, 20, 21]
        assert batch.lengths == [7, 2]
        assert batch.actions.tolist() == [2, 5, 6, 8]
        assert batch.action_lengths == [3, 1]
        assert batch.steps.tolist() == [0, 1, 1, 0]
        assert batch.group == ["g", "h"]
        assert batch.columns["sampled_log_prob"].tolist() == [-0.25, -0.625, -0.75, -0.125]

    @given(batches)
    @quick
    def test_actions_are_exactly_the_tokens_under_the_mask(self, attempts: list[Trajectory]) -> None:
        batch = Batch.pack(attempts)
        mask = [on for attempt in attempts for on in attempt.mask]
        assert batch.actions.tolist() == [place for place, on in enumerate(mask) if on]
        assert batch.tokens.tolist() == [token for attempt in attempts for token in attempt.tokens]
        said = [(s, t) for a in attempts for s, step in enumerate(a.steps) for t in step.tokens]
        assert list(zip(batch.steps.tolist(), batch.tokens[batch.actions].tolist(), strict=True)) == said

    def test_a_sampled_token_with_nothing_before_it_is_refused(self) -> None:
        # Its state would be read off the sequence that happens to lie before it.
        good = trajectory([("prompt", [1]), ("policy", [2])])
        bad = trajectory([("prompt", []), ("policy", [3])], group="open")
        with pytest.raises(ValueError, match="attempt open/0 begins with a sampled token"):
            Batch.pack([good, bad])


class TestPadding:
    @given(batches)
    @quick
    def test_flat_undoes_padded(self, attempts: list[Trajectory]) -> None:
        batch = Batch.pack(attempts)
        column = torch.randn(len(batch.actions), dtype=torch.float64)
        assert torch.equal(batch.flat(batch.padded(column)), column)

    @given(batches)
    @quick
    def test_each_row_holds_its_own_actions_from_the_left_and_zeros_after(
        self, attempts: list[Trajectory]
    ) -> None:
        batch = Batch.pack(attempts)
        padded = batch.padded("sampled_log_prob")
        for row, attempt in enumerate(attempts):
            own = [value for step in attempt.steps for value in step.log_probs]
            assert padded[row, : len(own)].tolist() == own
            assert not padded[row, len(own) :].any()
            assert batch.mask[row].tolist() == [1.0] * len(own) + [0.0] * (padded.shape[1] - len(own))

    def test_gradients_pass_through(self) -> None:
        batch = Batch.pack([trajectory([("prompt", [1]), ("policy", [2] * n)]) for n in (3, 1)])
        column = torch.arange(4.0, requires_grad=True)
        (batch.padded(column) * torch.tensor([[1.0, 2, 3], [4, 9, 9]])).sum().backward()
        assert column.grad is not None
        assert column.grad.tolist() == [1, 2, 3, 4]

    def test_a_score_stands_at_the_last_action(self) -> None:
        batch = Batch.pack([trajectory([("prompt", [1]), ("policy", [2] * n)]) for n in (3, 1)])
        assert batch.rewards([0.5, 2.0]).tolist() == [[0, 0, 0.5], [2.0, 0, 0]]

    def test_where_nothing_was_sampled_there_is_no_score(self) -> None:
        silent = trajectory([("prompt", [1])])
        batch = Batch.pack([trajectory([("prompt", [1]), ("policy", [2, 2])]), silent])
        assert batch.rewards([0.5, 2.0]).tolist() == [[0, 0.5], [0, 0]]

    def test_a_step_is_rewarded_at_its_own_last_action(self) -> None:
        walked = trajectory([("prompt", [1]), ("policy", [2, 2]), ("tool", [3]), ("policy", [4])])
        silent = trajectory([("prompt", [1]), ("policy", []), ("policy", [2])])
        batch = Batch.pack([walked, silent, trajectory([("prompt", [1])]), walked])
        assert batch.step_ends.tolist() == [0, 1, 1, 1, 0, 1, 1]
        given = batch.rewards_by_step([[0.5, 2.0], [9.0, 3.0], [], [4.0, 5.0]])
        assert given.tolist() == [[0, 0.5, 2.0], [3.0, 0, 0], [0, 0, 0], [0, 4.0, 5.0]]


class TestSelecting:
    @given(batches, st.data())
    @quick
    def test_selected_rows_are_what_packing_them_alone_gives(
        self, attempts: list[Trajectory], data: st.DataObject
    ) -> None:
        rows = data.draw(st.lists(st.integers(0, len(attempts) - 1), min_size=1, max_size=8))
        same(Batch.pack(attempts).select(rows), Batch.pack([attempts[row] for row in rows]))

    @given(batches, st.data())
    @quick
    def test_rows_between_two_are_those_selected_one_by_one(
        self, attempts: list[Trajectory], data: st.DataObject
    ) -> None:
        first = data.draw(st.integers(0, len(attempts) - 1))
        last = data.draw(st.integers(first + 1, len(attempts)))
        same(Batch.pack(attempts).between(first, last), Batch.pack(attempts[first:last]))

    @given(batches, st.data())
    @quick
    def test_padded_rows_of_a_selection_are_the_rows_of_the_whole(
        self, attempts: list[Trajectory], data: st.DataObject
    ) -> None:
        batch = Batch.pack(attempts)
        rows = data.draw(st.lists(st.integers(0, len(attempts) - 1), min_size=1, max_size=8))
        chosen = batch.select(rows)
        width = max(chosen.action_lengths)
        assert torch.equal(chosen.padded("sampled_log_prob"), batch.padded("sampled_log_prob")[rows, :width])


class TestSplitting:
    @given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 200))
    @quick
    def test_every_row_is_in_one_part_and_no_part_passes_the_budget(
        self, lengths: list[int], budget: int
    ) -> None:
        parts = partition(lengths, budget)
        assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
        for part in parts:
            padded = len(part) * max(lengths[row] for row in part)
            assert padded <= budget or len(part) == 1, "only a row that is too long by itself may pass it"

    @given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 200))
    @quick
    def test_without_padding_neighbours_stay_together_and_parts_are_full(
        self, lengths: list[int], budget: int
    ) -> None:
        parts = partition(lengths, budget, padded=False)
        assert [row for part in parts for row in part] == list(range(len(lengths)))
        for part, after in zip(parts, [*parts[1:], None], strict=True):
            tokens = sum(lengths[row] for row in part)
            assert tokens <= budget or len(part) == 1
            assert after is None or tokens + lengths[after[0]] > budget

    @given(batches, st.integers(1, 60))
    @quick
    def test_parts_hold_what_the_whole_holds(self, attempts: list[Trajectory], budget: int) -> None:
        parts = Batch.pack(attempts).split(budget)
        sequences = [list(piece) for part in parts for piece in part.tokens.split(part.lengths)]
        assert sorted(map(_ints, sequences)) == sorted(attempt.tokens for attempt in attempts)
        said = [_ints(part.tokens[part.actions]) for part in parts]
        assert sum(map(len, said)) == sum(attempt.sampled_tokens for attempt in attempts)

    @given(batches, st.integers(1, 60))
    @quick
    def test_computing_in_parts_is_computing_the_whole(self, attempts: list[Trajectory], budget: int) -> None:
        batch = Batch.pack(attempts)

        def compute(part: Batch) -> torch.Tensor:
            """Something that depends on token, place, step and column of each action."""
            starts = torch.tensor([0, *part.lengths[:-1]]).cumsum(0)
            starts = starts.repeat_interleave(torch.tensor(part.action_lengths))
            place = part.actions - starts
            return torch.stack(
                [part.tokens[part.actions], part.tokens[part.actions - 1], place, part.steps], dim=1
            ) + part.columns["sampled_log_prob"].unsqueeze(1)

        assert torch.equal(batch.in_parts(budget, compute), compute(batch))

    def test_a_batch_that_fits_is_not_copied(self) -> None:
        batch = Batch.pack([trajectory([("prompt", [1]), ("policy", [2] * n)]) for n in (3, 1)])
        (whole,) = batch.split(8)
        assert whole is batch


def _ints(values: Iterable[torch.Tensor]) -> list[int]:
    return [int(value) for value in values]
