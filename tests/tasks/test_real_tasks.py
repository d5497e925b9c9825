"""The presets of real data sets, from raw files in their formats to a step of training and an evaluation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from toolwright.cli import main
from toolwright.observe.metrics import Metrics
from toolwright.sandbox import layers
from toolwright.tasks import rows

TINY = (
    *("model.layers=1", "model.width=32", "model.heads=2", "model.kv_heads=2", "model.ffn=32"),
    *("train.steps=1", "update.minibatches=1", "run.threads=1", "task.held_out_size=2"),
    *("rollout.prompts=2", "rollout.samples=2", "rollout.max_tokens=12", "rollout.max_turns=2"),
    *("eval.samples=2", "eval.temperature=1"),
)
WORDS = ("Ada", "Bea", "Cyd")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def written(name: str, found: Sequence[dict[str, Any]]) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in found))
    return name


def prepare(name: str, file: str) -> None:
    assert main(["data", "prepare", name, "--from", file]) == 0


def trained(*words: str) -> dict[str, Any]:
    """The metrics of the last step, and of a run called `one`."""
    own = {word.partition("=")[0] for word in words}
    tiny = [word for word in TINY if word.partition("=")[0] not in own]
    assert main(["train", *words, *tiny, "run.name=one"]) == 0
    return Metrics.read(Path("runs/one/metrics.jsonl"))[-1]


def question(number: int) -> dict[str, Any]:
    """A row as HotpotQA has it."""
    name, other = WORDS[number], WORDS[number - 1]
    context = [[name, [f"{name} was born", f" in town {number}."]], [other, [f"{other} sings."]]]
    return {
        "_id": str(number),
        "question": f"Where was {name} born?",
        "answer": f"town {number}",
        "supporting_facts": [[name, 0], [other, 0]],
        "context": context,
        "type": "bridge",
        "level": "easy",
    }


def test_hotpotqa_is_searched_for_and_scored_by_overlap() -> None:
    found = [question(number) for number in range(3)]
    prepare("hotpotqa-search", written("hotpotqa-search_train.jsonl", found[:2]))
    prepare("hotpotqa-search", written("hotpotqa-search_validation.jsonl", found[2:]))
    corpus = rows.read(Path("data/hotpotqa-search_corpus.jsonl"))
    assert {row["title"] for row in corpus} == set(WORDS), "the passages of both files"
    assert len(corpus) == 6
    first = rows.read(Path("data/hotpotqa-search_train.parquet"))[0]
    assert "was born in" not in first["prompt"][0]["content"]
    assert first["extra_info"]["supporting_titles"] == ["Ada", "Cyd"]
    metrics = trained("task=hotpotqa")
    assert "reward/exact" in metrics
    assert "held_out/calling" in metrics
    assert "held_out/maj_at_2" in metrics


def test_mbpp_trains_and_humaneval_judges() -> None:
    if missing := layers.missing():
        pytest.skip(f"this kernel lacks layers of isolation: {missing}")
    problems = [
        {
            "task_id": number,
            "text": f"Add {number}.",
            "code": f"def add(n):\n    return n + {number}",
            "test_setup_code": "",
            "test_list": [f"assert add(1) == {number + 1}", f"assert add(5) == {number + 5}"],
        }
        for number in (2, 11, 550, 601)
    ]
    prepare("mbpp", written("mbpp.jsonl", problems))
    tasks = {
        split: rows.read(Path(f"data/mbpp_{split}.parquet")) for split in ("train", "validation", "test")
    }
    assert {split: [row["extra_info"]["task_id"] for row in own] for split, own in tasks.items()} == {
        "train": [2, 601],
        "validation": [550],
        "test": [11],
    }
    row = {
        "task_id": "HumanEval/0",
        "prompt": 'def one():\n    """One.\n    >>> one()\n    1\n    """\n',
        "canonical_solution": "    return 1\n",
        "test": "def check(candidate):\n    assert candidate() == 1\n",
        "entry_point": "one",
    }
    prepare("humaneval", written("HumanEval.jsonl", [row, row]))
    metrics = trained("task=mbpp")
    assert "reward/passed" in metrics
    assert metrics["held_out/attempts"] == 4
    assert metrics["held_out/pass_at_2"] == 0
    assert "held_out/maj_at_2" not in metrics, "programs do not vote"


def test_a_missing_file_says_which_command_makes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "task=gsm8k"]) == 2
    assert "toolwright data prepare gsm8k" in capsys.readouterr().err
    assert main(["train", "task=hotpotqa"]) == 2
    assert "toolwright data prepare hotpotqa-search" in capsys.readouterr().err


def test_a_mixture_keeps_its_weights_and_is_measured_by_source(capsys: pytest.CaptureFixture[str]) -> None:
    for source, truth in (("arithmetic", "2"), ("exact", "b")):
        made = [
            {
                "data_source": source,
                "prompt": [{"role": "user", "content": f"{source} {number}"}],
                "reward_model": {"ground_truth": truth},
                "extra_info": {"difficulty": number % 2},
            }
            for number in range(40)
        ]
        rows.write(Path(f"{source}.parquet"), made)
    shares = ["arithmetic.parquet:0.75", "exact.parquet:0.25"]
    assert main(["data", "mix", *shares, "--out", "mixed.parquet"]) == 0
    mixed = [row["data_source"] for row in rows.read(Path("mixed.parquet"))]
    assert (mixed.count("arithmetic"), mixed.count("exact")) == (40, 13)
    metrics = trained(
        *("task=file", "task.train=mixed.parquet", "task.held_out=[arithmetic.parquet,exact.parquet]"),
        *("task.order=difficulty", "rollout.prompts=16", "task.held_out_size=8"),
    )
    sources = {name: metrics[f"source/{name}/attempts"] for name in ("arithmetic", "exact")}
    assert sum(sources.values()) == 32
    assert sources["arithmetic"] > sources["exact"]
    assert {"source/exact/reward", "source/exact/accuracy", "held_out/exact/accuracy"} <= set(metrics)
    judged = ["task=file", "task.held_out=mixed.parquet", "model.path=runs/one/model", "run.threads=1"]
    capsys.readouterr()
    assert main(["eval", *judged, "--json"]) == 0
    assert "held_out/arithmetic/accuracy_low" in json.loads(capsys.readouterr().out)
