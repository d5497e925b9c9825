"""Keys of earlier versions, in the files of runs and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolwright.cli import main
from toolwright.config.former_keys import translated


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"task": {"shuffle": True, "order": "epochs"}}, {"task": {"order": "shuffled"}}),
        ({"task": {"shuffle": False, "order": "epochs"}}, {"task": {"order": "as_listed"}}),
        ({"task": {"shuffle": True, "order": "difficulty"}}, {"task": {"order": "difficulty"}}),
        ({"task": {"name": "sums"}}, {"task": {"name": "sums"}}),
        (
            {"model": {"tied": False, "qk_norm": True}},
            {"model": {"config": {"tie_word_embeddings": False, "qk_norm": True}}},
        ),
        (
            {"model": {"path": "m", "tied": True, "qk_norm": True}},
            {"model": {"path": "m", "config": {}}},
        ),
        (
            {
                "search": {
                    "runs": 9,
                    "guided": {"first": 8, "racing": True, "z": 1.0, "widening": 1.5, "patience": 40},
                }
            },
            {"search": {"runs": 9, "guided": {"first": 8}}},
        ),
        (
            {"search": {"guided": {"finals": 0.2}}, "proposer": {"name": "policy", "warm": 9}},
            {"search": {"guided": {}}, "proposer": {"name": "uniform"}},
        ),
    ],
)
def test_a_file_of_an_earlier_version_is_read(before: dict[str, Any], now: dict[str, Any]) -> None:
    assert translated(before, Path("config.yaml")) == now


@pytest.mark.parametrize("word", ["task.shuffle=false", "model.tied=true", "model.qk_norm=false"])
def test_a_former_key_names_its_replacement(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", word]) == 2
    assert "use " in capsys.readouterr().err


def test_a_former_key_of_the_search_names_its_replacement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflow", "search", "search.guided.racing=false"]) == 2
    assert "remove it; best-arm identification shares the runs" in capsys.readouterr().err
