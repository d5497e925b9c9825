"""Tools in whole runs: demonstrated, evaluated, trained with; and a server that goes away in the middle."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from toolwright.cli import main
from toolwright.failures import UserError

from .runs import HERE, metrics, rollouts, trained

TASK = (f"task.name={HERE}/sums.py:tasks", "task.held_out_size=8", "run.threads=1")
TOOLS = ("rollout.tool_prompt=''", "rollout.max_tokens=24", "rollout.max_turns=3")
CALCULATOR = (*TOOLS, "tools={calculator: {}}")
SHAPE = ("model.layers=1", "model.width=32", "model.heads=2", "model.kv_heads=2", "model.ffn=64")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("warm")
    own = (
        "steps=160",
        "batch=16",
        "optimizer.lr=1e-2",
        "model.context=96",
        f"run.dir={runs}",
        "run.name=warm",
    )
    assert main(["sft", *SHAPE, *TASK, *CALCULATOR, *own]) == 0
    return runs / "warm"


def away(until: float) -> tuple[str, ...]:
    path = f"{HERE}/sums.py:Away"
    return (*TOOLS, f"tools={{calculator: {{path: '{path}', back: {until}}}}}")


def test_sft_teaches_to_call_a_tool(warm: Path) -> None:
    rows = metrics(warm)
    assert rows[-1]["held_out/accuracy"] >= 0.75 > rows[0]["held_out/accuracy"]


def test_train_goes_on_with_it(warm: Path, tmp_path: Path) -> None:
    run = trained(
        tmp_path, *TASK, *CALCULATOR, "rollout.agent=auto", f"model.path={warm}/model", "model.context=96"
    )
    rows = metrics(run)
    assert rows[0]["held_out/accuracy"] == metrics(warm)[-1]["held_out/accuracy"]
    assert rows[-1]["attempts/tool_calls"] > 0.5
    assert rows[-1]["use/tool_calls"] > 0
    assert all(row["gap/abs_max"] <= 1e-5 for row in rows[1:])
    called = [s for t in rollouts(run)[1] for s in t.segments if s.calls]
    assert called[0].calls[0]["name"] == "calculator"
    assert called[0].text.startswith("<result>")


def test_eval_uses_it_too(warm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *TASK, *CALCULATOR, f"model.path={warm}/model", "model.context=96", "--json"]) == 0
    assert '"held_out/accuracy": 1.0' in capsys.readouterr().out or metrics(warm)[-1]["held_out/accuracy"] < 1


def test_a_server_that_comes_back_in_time_costs_nothing(warm: Path, tmp_path: Path) -> None:
    own = ("rollout.agent=auto", f"model.path={warm}/model", "model.context=96", "train.steps=1")
    patience = ("rollout.retries=6", "rollout.retry_pause_s=0.5")
    run = trained(tmp_path, *TASK, *away(time.time() + 4), *own, *patience)
    assert metrics(run)[-1]["groups/dropped"] == metrics(run)[-1]["attempts/failed"] == 0


def test_a_server_that_stays_away_is_named_and_nothing_is_scored(warm: Path, tmp_path: Path) -> None:
    own = ("rollout.agent=auto", f"model.path={warm}/model", "model.context=96", "train.steps=1")
    with pytest.raises(UserError, match="http://sums:80"):
        trained(tmp_path, *TASK, *away(time.time() + 999), *own, "rollout.retries=0")
