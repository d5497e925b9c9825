"""Each tracker with its own package and without a network: what it keeps of a run, and of a resumed one."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.observe.test_tracking import tracked

CONFIG = {"algorithm": {"name": "grpo"}, "rollout": {"samples": 4}}


def test_tensorboard_shows_metrics_configuration_attempts_and_summary(run: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = {"tensorboard": {"notes": "about it"}}
    assert tracked(run, settings, config=CONFIG) == []
    assert tracked(run, settings, config=CONFIG, after=2) == []
    events = EventAccumulator(str(run / "trackers/tensorboard"))
    events.Reload()
    points = [(event.step, round(event.value, 3)) for event in events.Scalars("reward/mean")]
    assert points == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4), (5, 0.5)]  # step 3 once: taken back on resuming

    def text(tag: str) -> str:
        return events.Tensors(tag)[-1].tensor_proto.string_val[0].decode()

    assert '"name": "grpo"' in text("config")
    assert text("notes") == "about it"
    assert "`What is 12 times 7?`" in text("attempts")
    assert "calculator" in text("attempts")
    assert "held-out accuracy" in text("summary")


def test_wandb_keeps_a_run_offline(run: Path) -> None:
    pytest.importorskip("wandb")
    settings = {"wandb": {"mode": "offline", "project": "sums", "notes": "about it", "tags": ["a"]}}
    assert tracked(run, settings, config=CONFIG) == []
    (run / "report.html").write_text("<p>the report</p>")
    assert tracked(run, settings, config=CONFIG, after=3, steps=1) == []
    first, second = sorted(
        (run / "trackers/wandb/wandb").glob("offline-run-*"), key=lambda path: path.stat().st_mtime
    )
    id = (run / "trackers/id").read_text().strip()
    kept = (first / f"run-{id}.wandb").read_bytes() + (second / f"run-{id}.wandb").read_bytes()
    for word in (
        b"reward/mean",
        b"about it",
        b"held_out_accuracy_before",
        b"sums",
        b"grpo",
        run.name.encode(),
    ):
        assert word in kept
    tables = [json.loads(path.read_text()) for path in first.glob("files/media/table/attempts_*.json")]
    assert len(tables) == 3
    assert {"question", "answer", "reward", "tool calls"} <= set(tables[0]["columns"])
    assert "What is 12 times 7?" in tables[0]["data"][0]
    (page,) = second.glob("files/media/html/report_*.html")
    assert "the report" in page.read_text()


def test_trackio_keeps_a_run_in_its_database(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    settings = {"trackio": {"project": "sums", "name": "mine"}}
    assert tracked(run, settings, config=CONFIG) == []
    assert tracked(run, settings, config=CONFIG, after=3, steps=1) == []
    with sqlite3.connect(tmp_path / "trackio/sums.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics order by step").fetchall()
    logged = [(name, step, json.loads(metrics)) for name, step, metrics in rows]
    assert {name for name, _, _ in logged} == {"mine"}
    found = {step: values["reward/mean"] for _, step, values in logged if "reward/mean" in values}
    assert found == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}
    assert "What is 12 times 7?" in json.dumps(logged)
    assert "held-out accuracy" in json.dumps(logged)


def test_mlflow_keeps_a_run_in_a_folder(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    (run / "report.html").write_text("<p>the report</p>")
    uri = (tmp_path / "mlruns").as_uri()
    settings = {"mlflow": {"uri": uri, "experiment": "sums", "notes": "about it", "tags": {"a": "b"}}}
    assert tracked(run, settings, config=CONFIG) == []
    assert tracked(run, settings, config=CONFIG, after=3, steps=1) == []
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("sums")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == run.name
    assert found.info.status == "FINISHED"
    assert found.data.params["algorithm.name"] == "grpo"
    assert found.data.tags["mlflow.note.content"] == "about it"
    assert found.data.tags["summary.held_out_accuracy_before"] == "0.1"
    points = client.get_metric_history(found.info.run_id, "reward/mean")
    assert [(point.step, point.value) for point in points] == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    artifacts = {artifact.path for artifact in client.list_artifacts(found.info.run_id)}
    assert {"attempts", "config.json", "report.html"} <= artifacts


def test_swanlab_keeps_a_run_offline(run: Path) -> None:
    pytest.importorskip("swanlab")
    settings = {"swanlab": {"mode": "offline", "project": "sums", "notes": "about it"}}
    assert tracked(run, settings, config=CONFIG) == []
    assert tracked(run, settings, config=CONFIG, after=3, steps=1) == []
    kept = b"".join(path.read_bytes() for path in (run / "trackers/swanlab").rglob("*") if path.is_file())
    for word in (b"reward/mean", b"What is 12 times 7?", b"held-out accuracy"):
        assert word in kept
