"""What the tests of verl's command lines share: a tiny model, a small file of tasks, a bare machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiny
from toolwright.models import huggingface
from toolwright.models.tokenizer import Tokenizer
from toolwright.tasks import rows
from toolwright.verl.config import Machine
from toolwright.verl.translate import translate
from toolwright.verl.translation import Translation

BARE = Machine(devices=0, engines=frozenset({"native"}))


def tasks(path: Path, count: int = 16) -> Path:
    """Sums as verl users keep them."""
    translation = [
        {
            "data_source": "arithmetic",
            "prompt": [{"role": "user", "content": f"{number}+{number % 7}="}],
            "reward_model": {"style": "rule", "ground_truth": str(number + number % 7)},
            "extra_info": {"index": number},
        }
        for number in range(count)
    ]
    rows.write(path, translation)
    return path


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return tasks(tmp_path / "train.parquet")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-model"
    tokenizer: Tokenizer = tiny.characters()
    huggingface.save(tiny.decoder(), folder)
    tokenizer.save(folder)
    return folder


class Line:
    """A command line with the paths filled in."""

    def __init__(self, train: Path) -> None:
        self.paths = [f"data.train_files={train}", "actor_rollout_ref.model.path=model"]

    def __call__(self, *words: str, fit: bool = True, machine: Machine = BARE) -> Translation:
        return translate([*self.paths, *words], machine=machine, fit=fit)


@pytest.fixture
def line(train: Path) -> Line:
    return Line(train)
