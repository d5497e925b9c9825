"""Filters of attempts, as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolwright.failures import UserError
from toolwright.observe import rollouts
from toolwright.observe.attempt_filter import AttemptFilter
from toolwright.observe.attempt_index import AttemptIndex, AttemptTable


@pytest.fixture
def table(run: Path) -> AttemptTable:
    return AttemptIndex().refresh(
        {step: (path, rollouts.version_of(path) or (0, 0)) for step, path in rollouts.files(run).items()}
    )


@pytest.mark.parametrize(
    ("written", "count"),
    [
        ("", 24),
        ("reward<0.5", 6),
        ("reward<=0.5", 12),
        ("reward!=1", 12),
        ("reward=none", 6),
        ("reward!=none", 18),
        ("failed=yes", 6),
        ("failed!=yes", 18),
        ("step>=5", 8),
        ("tokens=3 turns=2 tools>0 errors=0", 24),
        ("stop=EOS", 24),
        ("stop!=eos", 0),
        ("group=s1-apple,s2-berry", 4),
        ("group~apple", 12),
        ('question~"12 times"', 24),
        ("failure~sandbox", 6),
        ("counts/tool_calls=1", 24),
        ("HALF", 6),
        ('"half right"', 6),
        ('"right half"', 0),
        ("half times", 6),
        ("reward<0.4 half", 0),
        ('"x<5"', 0),
    ],
)
def test_all_conditions_and_words_must_hold(table: AttemptTable, written: str, count: int) -> None:
    assert len(AttemptFilter.parse(written).matching(table)) == count


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("rewrd<1", "no column 'rewrd'; did you mean 'reward'"),
        ("reward<low", "'low' is not a number"),
        ("reward~1", "reward is a number"),
        ("group<3", "group is a text"),
        ("failed=perhaps", "failed=yes or failed=no"),
        ("reward<", "a value is missing"),
    ],
)
def test_a_mistake_is_named(table: AttemptTable, written: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        AttemptFilter.parse(written).matching(table)
