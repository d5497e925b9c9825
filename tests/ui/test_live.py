"""Following runs while they go on: events, files that are half written, runs that disappear."""

from __future__ import annotations

import os
import shutil
import tarfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import metrics
from tests.waiting import wait_until
from toolwright.observe import run_folders
from toolwright.observe.metrics import Metrics
from toolwright.observe.text_search import search
from toolwright.runtime.host import identity
from toolwright.ui import run_card
from toolwright.ui.live import OLD_EVERY, SLOWEST, ChangeWatch
from toolwright.ui.problem import PageProblem
from toolwright.ui.run_files import WATCHED
from toolwright.ui.run_library import RunLibrary
from toolwright.ui.views.attempt import read_attempts

from .conftest import hostile_run, trained
from .served import serving

RUNS_OF_0_1 = Path(__file__).parents[1] / "trainer" / "runs_of_0_1.tar.xz"


def test_a_training_is_followed_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolwright.ui.live.LOOK_EVERY_S", 0.02)
    monkeypatch.setattr("toolwright.ui.run_library.LOOK_AGAIN_S", 0.02)
    seen: dict[int, dict[str, Any]] = {}
    states, changed = set(), set()
    with serving(tmp_path) as served, served.events() as events:
        assert next(events)[0] == "hello"
        run = threading.Thread(target=trained, args=(tmp_path, "run.name=now", "train.steps=4"))
        run.start()
        for kind, data in events:
            assert (kind, data["run"]["name"]) == ("run", "now")
            assert data["from"] == len(seen)
            seen.update({data["from"] + place: row for place, row in enumerate(data["rows"])})
            states.add(data["run"]["state"])
            changed.update(data["changed"])
            if data["run"]["state"] == "finished" and "report" in data["changed"]:
                break
        run.join()
    assert [row["step"] for row in seen.values()] == [0, 1, 2, 3, 4]
    assert seen[4]["reward/mean"] == metrics(tmp_path / "now")[4]["reward/mean"]
    assert states <= {"running", "finished"}
    assert {"metrics", "attempts", "timeline", "log"} <= changed


def test_a_run_that_is_deleted_is_reported_and_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwright.ui.live.LOOK_EVERY_S", 0.02)
    monkeypatch.setattr("toolwright.ui.run_library.LOOK_AGAIN_S", 0.02)
    run = hostile_run(tmp_path / "doomed")
    with serving(tmp_path) as served, served.events() as events:
        next(events)
        assert served.of_run("doomed", "/attempts")["total"] == 12
        shutil.rmtree(run / "rollouts")
        assert served.of_run("doomed", "/attempts")["total"] == 0
        shutil.rmtree(run)
        assert ("gone", {"name": "doomed"}) in events
        assert served.ask("/api/runs/doomed").status == 404


def test_a_change_of_a_run_whose_texts_utf8_cannot_express_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwright.ui.live.LOOK_EVERY_S", 0.02)
    run = hostile_run(tmp_path / "run")
    with serving(tmp_path) as served, served.events() as events:
        next(events)
        (run / "log.txt").write_text("more")
        kind, data = next(events)
        assert (kind, data["run"]["algorithm"]) == ("run", "\ud800<i>")


def test_looks_that_take_long_come_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []

    def work(watch: ChangeWatch) -> list[Any]:
        looked.append(time.monotonic())
        until = time.process_time() + 0.01
        while time.process_time() < until:
            pass
        return []

    monkeypatch.setattr("toolwright.ui.live.LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(ChangeWatch, "changes", work)
    with serving(tmp_path) as served, served.events() as events:
        next(events)
        wait_until(lambda: len(looked) > 3, "it has looked four times")
    assert min(after - before for before, after in pairwise(looked)) >= 0.02 * SLOWEST


def test_a_page_is_let_go_when_looking_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(watch: ChangeWatch) -> list[Any]:
        raise OSError("the disk is gone")

    monkeypatch.setattr(ChangeWatch, "changes", fail)
    with serving(tmp_path) as served, served.events() as events:
        assert [kind for kind, _ in events] == ["hello"]


def test_runs_of_long_ago_are_looked_at_less_often(tmp_path: Path) -> None:
    for number in range(4):
        file = hostile_run(tmp_path / str(number)) / "log.txt"
        for one in [*file.parent.iterdir()]:
            os.utime(one, (1e9, 1e9))
    watch = ChangeWatch(RunLibrary(tmp_path))
    watch.begin()
    assert watch.changes() == []
    file.write_text("more")
    found = [len(watch.changes()) for _ in range(OLD_EVERY)]
    assert sorted(found) == [0] * (OLD_EVERY - 1) + [1]


def test_a_server_that_stops_ends_its_streams(tmp_path: Path) -> None:
    with serving(tmp_path) as served, served.events() as events:
        next(events)
        started = time.monotonic()
        served.app.draining = True
        assert list(events) == []
        assert time.monotonic() - started < 60


def test_half_a_line_of_metrics_is_read_once_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "run" / "metrics.jsonl"
    file.parent.mkdir()
    file.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    with serving(tmp_path) as served:
        assert served.of_run("run", "/metrics")["columns"]["loss"] == [2.0]
        with file.open("a") as more:
            more.write('ss": 1.5}\nnot json\n[1]\n{"step": 3, "new": 7}\n')
        told = served.of_run("run", "/metrics")
        assert told["columns"]["step"] == [1, 2, 3]
        assert told["columns"]["loss"] == [2.0, 1.5, None]
        assert told["columns"]["new"] == [None, None, 7.0]


def test_a_run_that_goes_back_is_read_again(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "run")
    with serving(tmp_path) as served:
        assert served.of_run("run", "/metrics")["rows"] == 3
        Metrics.truncate(run / "metrics.jsonl", after_step=1)
        (run / "rollouts" / "step_000003.parquet").unlink()
        assert served.of_run("run", "/metrics?since=3")["columns"]["step"] == [1]
        assert served.of_run("run", "/attempts")["facets"]["steps"] == [1, 2]


def test_a_half_written_file_of_attempts_spoils_no_other(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "run")
    file = run / "rollouts" / "step_000002.parquet"
    whole = file.read_bytes()
    (run / "rollouts" / "step_000004.partial").write_bytes(whole[:100])
    with serving(tmp_path) as served:
        assert served.of_run("run", "/attempts")["total"] == 12
        for broken in (whole[: len(whole) // 2], b"", b"PAR1", b"x" * 500):
            file.write_bytes(broken)
            told = served.of_run("run", "/attempts?q=Answer")
            assert told["matched"] == 8
            assert "step_000002.parquet cannot be read" in told["unreadable"]["2"]
            assert served.ask("/api/runs/run/attempts/2/0").status == 404
            assert served.of_run("run")["warnings"]
        file.write_bytes(whole)
        assert served.of_run("run", "/attempts/2/0")["reward"] == 0


def test_attempts_that_vanish_between_two_looks_are_not_found(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "run")
    opened = RunLibrary(tmp_path).get("run")
    table = opened.attempts
    shutil.rmtree(run / "rollouts")
    path = table.path(1)
    assert path is not None
    with pytest.raises(PageProblem, match="no longer exist"):
        read_attempts(path, [0], tokens=True)
    found = search(table, table.row, "Answer", skip=0, limit_s=60)
    assert (found.places, found.complete) == ([], True)


def test_the_attempts_of_the_run_that_changed_last_are_read_ahead(tmp_path: Path) -> None:
    for name in ("earlier", "later"):
        hostile_run(tmp_path / name)
    for file in WATCHED.values():
        if (tmp_path / "earlier" / file).exists():
            os.utime(tmp_path / "earlier" / file, (1, 1))
    library = RunLibrary(tmp_path)
    library.read_ahead()
    assert library.get("earlier").attempts_in_memory == 0
    assert library.get("later").attempts_in_memory == len(library.get("later").attempts) > 0


def test_a_quiet_run_is_taken_for_stopped(tmp_path: Path) -> None:
    hostile_run(tmp_path / "run")
    run = RunLibrary(tmp_path).get("run")
    now = run.files.updated
    assert run_card.card(run, now=now + 1)["state"] == "running"
    assert run_card.card(run, now=now + run_folders.QUIET_S + 1)["state"] == "stopped"
    (tmp_path / "run" / "report.html").write_text("")
    assert run_card.card(run, now=now + 1)["state"] == "stopped"  # it said its last word before its last step


def test_the_process_of_a_run_tells_whether_it_goes_on(tmp_path: Path) -> None:
    hostile_run(tmp_path / "run")
    run, command, own = RunLibrary(tmp_path).get("run"), tmp_path / "run" / "command.txt", identity()
    later = run.files.updated + 1e6
    command.write_text(f"process {own.pid} on {own.host}, begun {own.born}\n")
    assert run_card.card(run, now=later)["state"] == "running"  # a step may take days
    command.write_text(f"process {own.pid} on {own.host}, begun 1{own.born}\n")  # another had its number
    assert run_card.card(run, now=run.files.updated)["state"] == "stopped"
    command.write_text(f"process {own.pid} on elsewhere, begun {own.born}\n")
    assert run_card.card(run, now=run.files.updated)["state"] == "running"


def test_runs_of_version_0_1_are_shown(tmp_path: Path) -> None:
    with tarfile.open(RUNS_OF_0_1) as archive:
        if hasattr(tarfile, "data_filter"):  # Python before 3.11.4 has none
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(tmp_path)
    with serving(tmp_path / "runs") as served:
        listed = {run["name"]: run for run in served.get("/api/runs")["runs"]}
        assert set(listed) == {"sums", "gridworld-ppo", "lora"}
        for name in listed:
            assert listed[name]["state"] in ("finished", "stopped", "running")
            assert served.of_run(name)["config"]
            attempts = served.of_run(name, "/attempts")
            assert attempts["total"] == 4 * len(attempts["facets"]["steps"])
            assert not attempts["unreadable"]
            assert all(row["length"] > 0 and row["question"] for row in attempts["rows"])
            told = served.of_run(name, f"/attempts/{attempts['rows'][0]['step']}/0")
            assert told["tokenizer"]
            assert told["values"] == ["log_prob"]
            assert served.of_run(name, "/timeline")["roles"]
            assert served.of_run(name, "/metrics")["rows"] > 0
