"""A mixture of experts is trained as any other model: it learns, agrees with its engine, and is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolwright.failures import UserError
from toolwright.models import making
from toolwright.trainer.roles import check_layout

from .runs import configured, metrics, trained

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "norm_topk_prob": True,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("experts")
    making.make(made, "qwen3_moe", SHAPE, tokenizer=None, seed=0)
    return made


def changed(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if not k.startswith(("time/", "throughput/", "use/", "held_out/"))}


def test_it_learns_and_a_resumed_run_is_the_whole_one(folder: Path, tmp_path: Path) -> None:
    own = [f"model.path={folder}", "model.context=64", "rollout.samples=8", "checkpoint.every=5"]
    whole = trained(tmp_path, *own, "run.name=whole", "train.steps=40")
    rows = metrics(whole)
    first, last = ([row["reward/mean"] for row in part] for part in (rows[1:6], rows[-5:]))
    assert sum(last) / 5 > sum(first) / 5 + 0.2
    assert all(row["gap/abs_max"] == 0 for row in rows[1:])
    assert all(0 < row["policy/expert_entropy"] <= 1 for row in rows[1:])
    trained(tmp_path, *own, "run.name=cut", "train.steps=10")
    cut = trained(tmp_path, *own, "run.name=cut", "train.steps=15", "run.resume=true")
    assert [changed(row) for row in metrics(cut)[1:15]] == [changed(row) for row in rows[1:15]]


def test_its_sequences_and_matrices_are_not_split_over_ranks(folder: Path) -> None:
    for way in ("sequence", "tensor"):
        config = configured(
            f"model.path={folder}", "model.context=64", "runtime=ray",
            f"runtime.placement.policy.ranks={{{way}: 2}}",
        )  # fmt: skip
        with pytest.raises(UserError, match="a mixture of experts can be sharded"):
            check_layout(config)
