"""Every key of verl's has a row, every row leads somewhere, and the page that lists them is up to date."""

from __future__ import annotations

import subprocess
import sys

import pytest

from toolwright.config.keys import find
from toolwright.config.schema import Config
from toolwright.verl import keys
from toolwright.verl.table import ROWS, row_of

# Keys that the rooms of tools and agents bring; until then a command line that needs one is told so.
ON_THE_WAY = ("tools.", "rollout.")


@pytest.mark.parametrize("part", keys.PARTS)
def test_every_key_of_verls_has_a_row(part: str) -> None:
    assert [key for key in keys.parts()[part] if row_of(key) is None] == []


def test_the_recorded_list_is_the_whole_of_verls_configuration() -> None:
    assert len(keys.parts()["now"]) == 829
    assert {key.partition(".")[0] for key in keys.parts()["now"]} == {
        "actor_rollout_ref",
        "data",
        "critic",
        "custom_reward_function",
        "reward_model",
        "sandbox_fusion",
        "reward",
        "algorithm",
        "distillation",
        "transfer_queue",
        "trainer",
        "global_profiler",
        "skip",
        "ray_kwargs",
    }


def test_every_key_has_one_row() -> None:
    names = [row.key for row in ROWS]
    assert sorted(names) == sorted(set(names))


def test_a_row_without_an_equivalent_says_why() -> None:
    assert [row.key for row in ROWS if row.support != "translated" and not row.how] == []


def test_targets_of_rows_are_keys_of_ours() -> None:
    targets = {ours for row in ROWS for ours in row.ours}
    missing = [ours for ours in targets if find(Config, ours) is None]
    assert [ours for ours in missing if not ours.startswith(ON_THE_WAY)] == []


def test_the_row_of_a_key_wins_over_the_row_of_its_block() -> None:
    row = row_of("actor_rollout_ref.actor.fsdp_config.dtype")
    assert row is not None
    assert row.ours == ("model.dtype",)
    beneath = row_of("actor_rollout_ref.actor.fsdp_config.param_offload")
    assert beneath is not None
    assert beneath.support == "unused"


def test_the_room_imports_without_torch() -> None:
    # None forbids it. What else is installed may import torch by itself, if it finds one.
    code = "import sys; sys.modules['torch'] = None; "
    code += "import toolwright.verl.command, toolwright.verl.translate as t; "
    code += (
        "from toolwright.verl.config import Machine; t.translate(['a.b=1'], machine=Machine(0, frozenset()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
