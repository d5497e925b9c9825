"""The code of every page runs, in order, in a folder that has what pages speak of: models, data, a run."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from tests.docs.blocks import blocks, pages_with_code
from tests.docs.executor import run_page
from tests.docs.pages import ROOT
from toolwright.cli import main

TINY = ("hidden_size=32", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=32")
MODELS = ("model", "models/large", "models/small", "models/mine", "models/smollm2-135m", "path/to/hf/folder")
REWARD = (
    "def score(solution_str, ground_truth):\n    return float(len(solution_str) % 2)\n\n\nstyle = score\n"
)
PAIRS: list[dict[str, object]] = [
    {"prompt": f"{n} plus {n}?", "chosen": str(2 * n), "rejected": str(n)} for n in range(8)
]
PASSAGES: list[dict[str, object]] = [
    {"id": str(n), "title": f"Town {n}", "text": f"Town {n} has a bridge."} for n in range(5)
]


def questions(source: str) -> list[dict[str, object]]:
    return [
        {
            "prompt": [{"role": "user", "content": f"{n} plus {n}?"}],
            "data_source": source,
            "reward_model": {"ground_truth": str(2 * n)},
        }
        for n in range(8)
    ]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages name and do not make: NAME is a run, the rest are files and models."""
    folder = tmp_path_factory.mktemp("workshop")
    assert (
        main(["model", "init", "qwen3", *TINY, "intermediate_size=32", "--out", str(folder / "model")]) == 0
    )
    for name in MODELS[1:]:
        shutil.copytree(folder / "model", folder / name)
    for name in ("train", "test", "my", "gsm8k_train", "gsm8k_test", "data/gsm8k_train", "data/gsm8k_test"):
        write_rows(folder / name, questions("openai/gsm8k"))
    write_rows(folder / "qa", questions("searchR1_nq"))
    write_rows(folder / "wiki", PASSAGES)
    write_rows(folder / "pairs", PAIRS)
    (folder / "my_reward.py").write_text(REWARD)
    (folder / "script.py").write_text("print(6 * 7)\n")
    small = (
        "train.steps=1",
        "rollout.prompts=2",
        "rollout.samples=2",
        "task.held_out_size=2",
        "model.layers=1",
    )
    words = (*small, "task=sums", f"run.dir={folder / 'runs'}", "run.name=NAME", "run.threads=1")
    assert main(["train", *words]) == 0
    return folder


@pytest.fixture(scope="module")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    """As Parquet and as JSON lines, for pages that name the one or the other."""
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path.with_suffix(".parquet"))
    path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in pages_with_code() if any(block.language in ("sh", "python") for block in blocks(page))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_code_of_a_page_runs(
    page: Path, workshop: Path, interpreter: ProcessPoolExecutor, tmp_path: Path
) -> None:
    folder = tmp_path / "page"
    shutil.copytree(workshop, folder)
    interpreter.submit(run_page, page, folder).result(timeout=600)
