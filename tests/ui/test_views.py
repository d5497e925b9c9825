"""Every address of the page's server, asked about a real training."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.trainer.runs import metrics, rollouts
from toolwright.observe.metrics import Metrics
from toolwright.ui.config_file import ConfigFile
from toolwright.ui.run_files import RunFiles
from toolwright.workflow.program import single_call
from toolwright.workflow.record import CandidateRow, CurvePoint, Record

from .conftest import HOSTILE, RUN, trained
from .served import ServedPage, serving


def table(page: ServedPage, address: str) -> list[dict[str, str]]:
    reply = page.ask(address)
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/csv")
    assert reply.headers["content-disposition"].startswith("attachment")
    return list(csv.DictReader(io.StringIO(reply.body.decode())))


def test_runs_below_the_folder_are_listed_by_their_path(page: ServedPage, runs: Path) -> None:
    listed = {run["name"]: run for run in page.get("/api/runs")["runs"]}
    assert set(listed) == {RUN, HOSTILE}
    mine = listed[RUN]
    assert (mine["kind"], mine["state"], mine["step"], mine["steps"]) == ("train", "finished", 3, 3)
    assert mine["algorithm"] == "grpo"
    assert mine["last"]["reward/mean"] == metrics(runs / RUN)[-1]["reward/mean"]
    assert {"metrics", "attempts", "timeline", "evaluations"} <= set(mine["has"])
    assert len(mine["spark"]) == 3
    assert mine["started"] <= mine["updated"]


def test_a_run_is_reported_with_its_settings_and_where_they_came_from(page: ServedPage, runs: Path) -> None:
    told = page.of_run(RUN)
    config = {row["key"]: row for row in told["config"]}
    assert config["train.steps"] == {"key": "train.steps", "value": 3, "origin": "command line"}
    assert config["run.dir"]["origin"] == "preset"  # the test's own folder, not the schema's
    assert config["eval.samples"]["origin"] == "default"
    assert ["task", config["task.name"]["value"]] in told["facts"]
    assert "run folder" in told["log"]
    assert told["command"].startswith("# ")
    assert "reward/mean" in told["metrics"]
    assert any(chart["title"] == "Entropy" for chart in told["charts"])


def test_a_preset_on_the_command_line_sets_no_key_by_itself(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: {name: reverse, order: shuffled, params: {max_length: 3}}\n")
    words = "toolwright train task=reverse task.params={max_length:3}"
    (tmp_path / "command.txt").write_text(f"# 2026-01-01 00:00:00\n{words}\n")
    config = ConfigFile()
    config.read(RunFiles(tmp_path.resolve()))
    assert config.origins() == {
        "task.name": "preset",
        "task.order": "default",
        "task.params.max_length": "command line",
    }


def test_metrics_are_columns_over_step_time_and_tokens(page: ServedPage, runs: Path) -> None:
    rows = metrics(runs / RUN)
    told = page.of_run(RUN, "/metrics?names=reward/mean,none/such")
    assert told["names"] == ["reward/mean"]
    assert told["rows"] == len(rows)
    assert told["columns"]["step"] == [row["step"] for row in rows]
    assert told["columns"]["reward/mean"] == [row.get("reward/mean") for row in rows]
    sampled = {step: sum(t.sampled_tokens for t in found) for step, found in rollouts(runs / RUN).items()}
    assert told["columns"]["tokens"][-1] == pytest.approx(sum(sampled.values()), abs=len(rows))
    assert told["columns"]["time"] == sorted(told["columns"]["time"])


def test_metrics_are_sent_from_a_row_on(page: ServedPage) -> None:
    told = page.of_run(RUN, "/metrics?names=reward/mean&since=2")
    assert (told["from"], told["rows"], len(told["columns"]["step"])) == (2, 4, 2)
    assert page.of_run(RUN, "/metrics?since=99")["from"] == 0  # the run went back


def test_metrics_can_be_downloaded(page: ServedPage, runs: Path) -> None:
    rows = table(page, f"/api/runs/{quote(RUN, safe='')}/metrics?names=reward/mean&format=csv")
    assert [row["step"] for row in rows] == ["0", "1", "2", "3"]
    assert float(rows[-1]["reward/mean"]) == metrics(runs / RUN)[-1]["reward/mean"]


def test_a_steps_timeline_says_who_was_busy_and_who_waited_for_whom(page: ServedPage) -> None:
    told = page.of_run(RUN, "/timeline?step=2")
    assert told["steps"] == [1, 2, 3]
    assert told["step"] == 2
    roles = {role["who"]: role for role in told["roles"]}
    assert {"rollout", "policy", "reward"} <= set(roles)
    span = told["end"] - told["start"]
    for role in roles.values():
        assert role["busy_s"] + role["idle_s"] == pytest.approx(span)
        assert all(0 <= stage["start_s"] <= span for stage in role["stages"])
    assert "policy" in {who for wait in roles["rollout"]["waits"] for who in wait["for"]}
    assert len(page.of_run(RUN, "/timeline?from=1&to=3")["roles"]) >= len(roles)
    assert page.of_run(RUN, "/timeline")["step"] == 3


def test_evaluations_have_intervals(page: ServedPage) -> None:
    told = page.of_run(RUN, "/evaluations")
    assert [row["step"] for row in told["rows"]] == [0, 1, 2, 3]
    assert told["measure"] == "accuracy"
    for row in told["rows"]:
        assert 0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1
        assert row["low"] < row["high"]
    every = page.get("/api/evaluations")["rows"]
    assert {(row["run"], row["which"]) for row in every} == {(RUN, "last"), (RUN, "best")}


def test_two_runs_are_compared_task_by_task(page: ServedPage) -> None:
    told = page.get(f"/api/paired?a={quote(RUN)}&b={quote(RUN)}")
    rows = {(row["source"], row["measure"]): row for row in told["rows"]}
    assert rows["", "accuracy"]["difference"] == 0
    assert rows["", "accuracy"]["p"] == 1
    assert page.get(f"/api/paired?a={quote(RUN)}&b={quote(HOSTILE)}")["rows"] == []


def test_load_is_told_by_stage(page: ServedPage) -> None:
    told = page.of_run(RUN, "/load")
    titles = {chart["title"]: chart for chart in told["charts"]}
    assert titles["Seconds by stage"]["stacked"]
    assert ["time/update_s", "update"] in titles["Seconds by stage"]["keys"]
    assert "Cores in use" in titles
    assert all(len(column) == 4 for column in told["columns"].values())


def test_load_has_the_sandbox_beside_the_machine(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "code/metrics.jsonl")
    load = {"runs": 2.0, "queue": 3.0, "waited_s": 40.0, "kills": 1.0}
    metrics.append(1, {f"use/sandbox_{name}": value for name, value in load.items()})
    with serving(tmp_path) as page:
        charts = {chart["title"]: chart["keys"] for chart in page.of_run("code", "/load")["charts"]}
    assert charts == {
        "Sandbox: runs at work and in its queue": [
            ["use/sandbox_queue", "queue"],
            ["use/sandbox_runs", "runs"],
        ],
        "Sandbox: seconds that runs waited": [["use/sandbox_waited_s", "waited"]],
        "Sandbox: runs that it ended": [["use/sandbox_kills", "kills"]],
    }


def test_load_has_the_cache_of_the_native_engine(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "paged/metrics.jsonl")
    use = {"cache": 0.9, "cache_tokens": 4096, "cache_shared_tokens": 900, "cache_suspended": 3}
    metrics.append(1, {f"use/{name}": value for name, value in use.items()})
    with serving(tmp_path) as page:
        charts = {chart["title"]: chart["keys"] for chart in page.of_run("paged", "/load")["charts"]}
    assert charts == {
        "Engine's cache: the part in use at most": [["use/cache", "cache"]],
        "Engine's cache: tokens held, and saved by sharing": [
            ["use/cache_shared_tokens", "shared tokens"],
            ["use/cache_tokens", "tokens"],
        ],
        "Engine's cache: turns suspended for lack of room": [["use/cache_suspended", "suspended"]],
    }


def test_configurations_are_compared(page: ServedPage) -> None:
    told = page.get(f"/api/diff?a={quote(RUN)}&b={quote(HOSTILE)}")
    rows = {row["key"]: row for row in told["rows"]}
    assert rows["train.steps"] == {"key": "train.steps", "a": 3, "b": 10, "differs": True}
    assert "rollout.samples" in told["only_a"]
    assert [key for key, row in rows.items() if row["a"] is None and row["b"] is None] == []
    assert page.get(f"/api/diff?a={quote(RUN)}&b={quote(RUN)}")["rows"] == []
    assert len(page.get(f"/api/diff?a={quote(RUN)}&b={quote(RUN)}&all=true")["rows"]) > 100


@pytest.fixture
def searched(runs: Path) -> Iterator[str]:
    """A run with a workflow search of two candidates."""
    program = single_call().to_json()
    row = CandidateRow(0, None, "", 0.25, 0.1, 0.25, 8, 0.001, "", {}, program)
    better = CandidateRow(1, 0, "ask twice", 0.75, 0.1, 0.75, 8, 0.002, "", {"late": 1}, program)
    refused = CandidateRow(2, 0, "loop", 0.0, 0.0, 0.0, 0, 0.0, "it has a cycle", {}, {"odd": 1})
    curve = [CurvePoint(8, 0.008, 0, 0.25), CurvePoint(16, 0.024, 1, 0.75)]
    found = Record(
        "simulated", "guided", 16, 1, "budget", [row, better, refused], curve, {"start": 0.2, "best": 0.6}
    )
    folder = runs / RUN / "searches"
    found.save(folder / "maths.json")
    (folder / "torn.json").write_text("{")
    yield "maths"
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def test_a_workflow_search_is_a_tree_with_cost_and_score(page: ServedPage, searched: str) -> None:
    told = page.of_run(RUN, "/workflow")
    (search,) = told["searches"]
    assert search["name"] == searched
    assert [c["parent"] for c in search["candidates"]] == [None, 0, 0]
    assert [c["on_path"] for c in search["candidates"]] == [True, True, False]
    assert search["candidates"][1]["diagram"]
    assert search["curve"][-1] == {"runs": 16, "cost": 0.024, "best": 1, "score": 0.75}
    assert "torn.json" in told["unreadable"][0]
    rows = table(page, f"/api/runs/{quote(RUN, safe='')}/workflow?format=csv")
    assert [row["edit"] for row in rows] == ["", "ask twice", "loop"]


def test_one_run_can_be_the_folder(runs: Path) -> None:
    with serving(runs / RUN) as served:
        assert [run["name"] for run in served.get("/api/runs")["runs"]] == ["words"]
        assert served.of_run("words", "/attempts")["total"] > 0


def test_a_resumed_run_shows_one_history(tmp_path: Path) -> None:
    run = trained(tmp_path, "run.name=again", "train.steps=1")
    with serving(tmp_path) as served:
        assert served.of_run("again", "/metrics")["columns"]["step"] == [0, 1]
        trained(tmp_path, "run.name=again", "run.resume=true", "train.steps=2")
        assert served.of_run("again", "/metrics")["columns"]["step"] == [0, 1, 2]
        assert served.of_run("again", "/timeline")["steps"] == [1, 2]
        assert served.of_run("again", "/attempts?limit=1000")["total"] == sum(
            map(len, rollouts(run).values())
        )


def test_the_error_that_ended_a_run_is_among_its_warnings_until_it_goes_on(tmp_path: Path) -> None:
    run = trained(tmp_path, "run.name=ended", "train.steps=1")
    log = run / "log.txt"
    whole = log.read_text()
    with serving(tmp_path) as served:
        usual = served.of_run("ended")["warnings"]
        log.write_text(
            f"{whole}2026-01-01 00:00:00 the run ended with an error: step 1: no group is complete\n"
        )
        said = "the run ended with an error: step 1: no group is complete"
        assert served.of_run("ended")["warnings"] == [*usual, said]
        log.write_text(f"{log.read_text()}{whole}")
        assert served.of_run("ended")["warnings"] == usual
