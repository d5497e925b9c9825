"""Attempts: the table, what it is filtered and searched by, and one attempt token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.trainer.runs import rollouts
from toolwright.models.tokenizer import Tokenizer
from toolwright.observe.rollouts import files as rollouts_of
from toolwright.observe.token_texts import TokenTexts
from toolwright.record import TokenValues, load_token_values, rows_at_once, save
from toolwright.ui.run_files import RunFiles

from .conftest import HOSTILE, NASTY, RUN, hostile_attempt
from .served import ServedPage, serving


def rows(page: ServedPage, query: str, run: str = HOSTILE) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.of_run(run, f"/attempts?{query}")["rows"]
    return found


def test_the_table_has_every_attempt_of_the_run(page: ServedPage, runs: Path) -> None:
    told = page.of_run(RUN, "/attempts?limit=1000&sort=row")
    kept = rollouts(runs / RUN)
    assert told["total"] == told["matched"] == sum(map(len, kept.values()))
    for row in told["rows"]:
        attempt = kept[row["step"]][row["row"]]
        assert row["task"] == attempt.task.id
        assert row["reward"] == attempt.reward
        assert row["length"] == attempt.sampled_tokens
        assert row["turns"] == attempt.turns
        assert row["seconds"] == attempt.timings["attempt_s"]
        assert row["staleness"] == 0


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("step=2", {(2, 0), (2, 1), (2, 2), (2, 3)}),
        ("step=1,3&tool_calls_min=2", {(1, 2), (1, 3), (3, 2), (3, 3)}),
        ("step=2-3&length_max=3", {(2, 0), (3, 0)}),
        ("reward_min=0.25&reward_max=0.4&step=1", {(1, 1)}),
        ("failed=true", {(1, 3), (2, 3), (3, 3)}),
        ("failed=false&step=1", {(1, 0), (1, 1), (1, 2)}),
        ("stop=length", set()),
        ("stop=eos,length&step=1&turns_min=2&reward_max=0", {(1, 0)}),
        (f"group={quote(f'2/1 {NASTY}')}", {(2, 2), (2, 3)}),
        (f"task={quote(f'../../etc/0 {NASTY}')}&step=3", {(3, 0), (3, 1)}),
        ("source=%3Dcmd()&step=1&length_min=6", {(1, 3)}),
        ("q=aNSWER%202", {(1, 2), (2, 2), (3, 2)}),
        ("q=what%20is%201&step=1", {(1, 1)}),
        ("q=%3Cscript%3E&step=1", {(1, 0), (1, 1), (1, 2), (1, 3)}),
        ("q=nowhere", set()),
    ],
)
def test_filters_choose_attempts(page: ServedPage, query: str, expected: set[tuple[int, int]]) -> None:
    assert {(row["step"], row["row"]) for row in rows(page, query)} == expected


def test_attempts_are_sorted_with_missing_values_last(page: ServedPage) -> None:
    by_reward = [row["reward"] for row in rows(page, "step=1&sort=reward&order=desc")]
    assert by_reward == [0.5, 0.25, 0.0, None]
    assert [row["reward"] for row in rows(page, "step=1&sort=reward")] == [0.0, 0.25, 0.5, None]
    questions = [row["question"] for row in rows(page, "step=1&sort=question&order=desc")]
    assert questions == sorted(questions, reverse=True)
    assert [row["step"] for row in rows(page, "limit=4")] == [3] * 4  # the newest step first
    assert [row["row"] for row in rows(page, "step=1&limit=2&offset=1&sort=row")] == [1, 2]


def test_facets_count_what_matched(page: ServedPage) -> None:
    told = page.of_run(HOSTILE, "/attempts?step=1")
    assert told["facets"]["stop"] == {"eos": 4}
    assert told["facets"]["failed"] == {"true": 1, "false": 3}
    assert told["facets"]["steps"] == [1, 2, 3]


def test_a_search_shows_where_it_found_the_text(page: ServedPage) -> None:
    (row,) = rows(page, "q=answer%202&step=2")
    assert "Answer 2." in row["snippet"]


def test_a_search_that_runs_out_of_time_can_go_on(page: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolwright.ui.views.attempts.SEARCH_S", -1.0)
    first = page.of_run(HOSTILE, "/attempts?q=Answer")
    assert (first["complete"], first["searched"]) == (False, 4)
    monkeypatch.undo()
    rest = page.of_run(HOSTILE, f"/attempts?q=Answer&q_from={first['searched']}")
    assert (rest["complete"], rest["searched"], rest["matched"]) == (True, 12, 8)


def test_all_that_matched_can_be_downloaded_and_computes_nothing(page: ServedPage) -> None:
    reply = page.ask(f"/api/runs/{quote(HOSTILE, safe='')}/attempts?format=csv&limit=1&failed=false")
    lines = reply.body.decode().split("\r\n")
    assert sum("'=cmd()" in line for line in lines) == 9
    assert ",=cmd()" not in reply.body.decode()


def test_an_attempt_is_told_turn_by_turn(page: ServedPage) -> None:
    told = page.of_run(HOSTILE, "/attempts/2/1")
    assert [one["source"] for one in told["segments"]] == ["prompt", "policy", "tool", "policy"]
    assert told["segments"][2]["text"] == NASTY
    assert told["segments"][2]["calls"][0]["arguments"] == NASTY
    assert told["segments"][1]["tokens"]["values"]["log_prob"] == [-0.5, -0.25]
    assert told["task"]["ground_truth"] == {"answer": NASTY}
    assert (told["length"], told["turns"], told["reward"], told["version"]) == (4, 2, 0.25, 1)
    assert told["seed"] == str(2**62)  # a number of JavaScript would lose its last digits
    assert told["neighbours"] == {"previous": {"step": 2, "row": 0}, "next": {"step": 2, "row": 2}}
    assert [row["row"] for row in told["group_rows"]] == [0, 1]
    assert page.of_run(HOSTILE, "/attempts/2/3")["failure"]["message"].startswith("the sandbox hung")


def test_tokens_of_a_real_run_have_texts_and_probabilities(page: ServedPage, runs: Path) -> None:
    attempt = rollouts(runs / RUN)[3][0]
    told = page.of_run(RUN, "/attempts/3/0")
    assert (runs / RUN / "tokenizer.json").is_file(), "a run has a model only from its first checkpoint on"
    assert told["tokenizer"]
    answer = next(one for one in told["segments"] if one["source"] == "policy")
    assert answer["tokens"]["ids"] == attempt.steps[0].tokens
    assert answer["tokens"]["values"]["log_prob"] == pytest.approx(attempt.steps[0].log_probs)
    assert attempt.steps[0].text in "".join(answer["tokens"]["texts"])


def test_what_the_learner_computed_for_each_token_is_shown(page: ServedPage, runs: Path) -> None:
    kept = load_token_values(rollouts_of(runs / RUN)[3])
    learned = next(row for row, values in enumerate(kept) if values.learned)
    told = page.of_run(RUN, f"/attempts/3/{learned}")
    assert set(told["values"]) == {"log_prob", "learner_log_prob", "entropy", "advantage", "mask"}
    answer = next(one for one in told["segments"] if one["source"] == "policy")["tokens"]
    assert answer["values"]["entropy"] == pytest.approx(list(kept[learned].entropies))
    assert answer["values"]["advantage"] == pytest.approx(list(kept[learned].advantages))
    assert answer["values"]["learner_log_prob"] == pytest.approx(list(kept[learned].log_probs))
    assert answer["values"]["mask"] == [1] * answer["count"]
    prompt = next(one for one in told["segments"] if one["source"] == "prompt")
    assert prompt["tokens"]["values"] == {}


def test_values_of_several_turns_are_dealt_out_to_their_turns(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "rollouts").mkdir(parents=True)
    (run / "config.yaml").write_text("{}")
    attempts = [hostile_attempt(1, number) for number in range(2)]
    values = [TokenValues(entropies=np.arange(3, dtype=np.float32)), TokenValues()]
    save(run / "rollouts" / "step_000001.parquet", attempts, values)
    with serving(tmp_path) as served:
        turns = [one["tokens"]["values"] for one in served.of_run("run", "/attempts/1/0")["segments"]]
        assert [turn.get("entropy") for turn in turns] == [None, [0, 1], None, [2]]
        skipped = served.of_run("run", "/attempts/1/1")["segments"][1]["tokens"]["values"]
        assert (skipped["mask"], "entropy" in skipped) == ([0, 0], False)


def test_long_attempts_are_read_a_few_at_a_time(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pq.ParquetFile(rollouts_of(runs / RUN)[1]) as file:
        assert rows_at_once(file) == 256
        monkeypatch.setattr("toolwright.record.BYTES_AT_ONCE", 1)
        assert rows_at_once(file) == 1
    with serving(runs) as served:
        assert len(rows(served, "q=answer")) == 12
        assert served.of_run(HOSTILE, "/attempts/2/3")["index"] == 1


def test_a_character_of_several_tokens_is_shown_with_its_last(tmp_path: Path) -> None:
    tokenizer = Tokenizer.bytes()
    tokenizer.save(tmp_path / "model")
    texts = TokenTexts(RunFiles(tmp_path).file).of(tokenizer.encode("aé😀"))
    assert texts == ["a", "", "é", "", "", "", "😀"]


def test_long_texts_and_many_tokens_are_cut_unless_asked_for(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwright.ui.views.attempt.MOST_TEXT", 4)
    monkeypatch.setattr("toolwright.ui.views.attempt.MOST_TOKENS", 1)
    cut = page.of_run(HOSTILE, "/attempts/1/0")["segments"][1]
    assert (cut["text"], cut["cut"]) == ("ca\n…\n0)", 9)
    assert (cut["tokens"]["count"], cut["tokens"]["ids"]) == (2, [3])
    whole = page.of_run(HOSTILE, "/attempts/1/0?whole=true")["segments"][1]
    assert (whole["text"], whole["cut"], len(whole["tokens"]["ids"])) == ("calculator(0)", 0, 2)


def test_the_attempts_of_a_group_stand_side_by_side(page: ServedPage) -> None:
    group = quote(f"2/0 {NASTY}", safe="")
    told = page.of_run(HOSTILE, f"/groups/2/{group}")
    assert [one["row"] for one in told["attempts"]] == [0, 1]
    assert (told["reward_mean"], told["reward_std"]) == (0.125, 0.125)
    assert "tokens" not in told["attempts"][0]["segments"][0]
    assert "tokens" in page.of_run(HOSTILE, f"/groups/2/{group}?tokens=true")["attempts"][0]["segments"][0]


def test_a_task_is_followed_through_the_steps(page: ServedPage) -> None:
    name = f"../../etc/0 {NASTY}"
    listed = page.of_run(HOSTILE, "/tasks?sort=mean&order=desc")
    assert listed["total"] == 2
    assert listed["rows"][0]["attempts"] == 6
    told = page.of_run(HOSTILE, f"/tasks/{quote(name, safe='')}")
    assert [step["step"] for step in told["steps"]] == [1, 2, 3]
    assert told["steps"][0]["reward_mean"] == 0.125
    assert told["steps"][0]["rows"][1]["answer"].endswith("Answer 1.")


def test_a_task_that_came_up_in_one_step_has_neither_gained_nor_lost(page: ServedPage) -> None:
    rows = [row for run in (RUN, HOSTILE) for row in page.of_run(run, "/tasks")["rows"]]
    assert {row["steps"] == 1 for row in rows} == {True, False}
    assert [row for row in rows if (row["change"] is None) != (row["steps"] == 1)] == []


def test_distributions_of_lengths_rewards_and_counts(page: ServedPage) -> None:
    told = page.of_run(HOSTILE, "/distributions?what=length&by=step")
    assert (told["count"], sum(told["counts"]), told["mean"]) == (12, 12, 4.5)
    assert (told["edges"][0], told["quantiles"]["max"]) == (2.5, 6)
    assert [step["mean"] for step in told["by_step"]] == [4.5] * 3
    address = f"/api/runs/{quote(HOSTILE, safe='')}/distributions?what=length&format=csv"
    for by, lines in (("", 4), ("&by=step", 3 * 4)):
        assert len(page.ask(address + by).body.split()) == 1 + lines
    assert page.of_run(HOSTILE, "/distributions?what=reward&step=1")["count"] == 3  # one has none
    assert page.of_run(HOSTILE, "/distributions?what=parts/acc")["mean"] == 0.5
    assert {"staleness", "counts/tool_calls", "timings/attempt_s"} <= set(told["available"])


def test_failures_are_gathered_by_their_message(page: ServedPage) -> None:
    told = page.of_run(HOSTILE)
    (failure,) = told["failures"]
    assert (failure["count"], failure["steps"], failure["kind"]) == (3, [1, 2, 3], "task")
    assert failure["example"] == {"step": 1, "row": 3}
    assert [one["who"] for one in told["incidents"]] == ["rollout-1"]


def test_files_without_columns_for_readers_are_read_all_the_same(tmp_path: Path, runs: Path) -> None:
    """As an earlier version wrote them."""
    source = runs / HOSTILE / "rollouts" / "step_000001.parquet"
    target = tmp_path / "old" / "rollouts" / "step_000001.parquet"
    target.parent.mkdir(parents=True)
    (tmp_path / "old" / "config.yaml").write_text("{}")
    whole = pq.read_table(source)
    pq.write_table(whole.drop_columns(["question", "turns", "sampled_tokens", "response"]), target)
    with serving(tmp_path) as old, serving(runs) as new:
        columns = ("question", "length", "turns", "reward", "tool_calls")
        found, expected = (rows(p, "step=1&sort=row", r) for p, r in ((old, "old"), (new, HOSTILE)))
        for one, other in zip(found, expected, strict=True):
            assert {name: one[name] for name in columns if name != "question"} == {
                name: other[name] for name in columns if name != "question"
            }
            assert one["question"].startswith("What is")
        assert len(rows(old, "q=What%20is%202", "old")) == 1
