"""The portfolio: the workflows that every search measures first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.workflow.programs import operators_of
from toolwright.cli import main
from toolwright.failures import UserError
from toolwright.workflow.aflow.write import write
from toolwright.workflow.executors import CODE, MATH, QUESTIONS
from toolwright.workflow.portfolio import Portfolio
from toolwright.workflow.program import single_call
from toolwright.workflow.proposers import Editor
from toolwright.workflow.record import records

SEARCH = ["workflow", "search", "search.tasks=12", "search.held_out=4", "proposer.name=uniform"]


def test_the_one_shipped_can_run_and_says_nothing_twice() -> None:
    found = Portfolio.load().workflows
    assert all(not workflow.problems() for workflow in found.values())
    assert len({workflow.fingerprint for workflow in found.values()}) == len(found)
    assert found["answer directly"].fingerprint == single_call().fingerprint


@pytest.mark.parametrize("operators", [MATH, CODE, QUESTIONS])
def test_a_data_set_gets_what_it_has_operators_for(operators: tuple[str, ...]) -> None:
    kept = Portfolio.load().usable(Editor(operators))
    assert len(kept) >= 8
    assert {"Programmer", "Test", "AnswerGenerate"} - set(operators)
    for proposal in kept:
        assert operators_of(proposal.workflow) <= {*operators, "Review", "Choose"}


def test_what_needs_tests_is_left_out_where_there_are_none() -> None:
    portfolio = Portfolio.load()
    tested = [p for p in portfolio.usable(Editor(CODE)) if "Test" in operators_of(p.workflow)]
    assert tested
    without = Editor(CODE, offers=frozenset({"sandbox", "entry_point"}))
    assert not [p for p in portfolio.usable(without) if "Test" in operators_of(p.workflow)]


def test_a_file_of_yours_takes_edits_programs_and_aflows_python(tmp_path: Path) -> None:
    graph, prompt = write(Portfolio.load().workflows["self-consistency of 3"])
    (tmp_path / "graph.py").write_text(graph)
    (tmp_path / "prompt.py").write_text(prompt)
    (tmp_path / "single.json").write_text(json.dumps(single_call("AnswerGenerate").to_json()))
    file = tmp_path / "mine.yaml"
    file.write_text(
        "prompts: {HASTE: Be quick.}\n"
        "workflows:\n"
        "  quick: [set solve prompt HASTE]\n"
        "  ensemble: {file: graph.py}\n"
        "  single: {file: single.json}\n"
    )
    found = Portfolio.load(file)
    assert list(found.workflows) == ["quick", "ensemble", "single"]
    assert found.workflows["quick"].prompts == {"HASTE": "Be quick."}
    assert "ScEnsemble" in operators_of(found.workflows["ensemble"])


@pytest.mark.parametrize("text", ["workflows: {a: add}", "workflows: {a: [fly away]}", "a: b", "- 1", "{"])
def test_a_file_that_cannot_be_read_is_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(UserError, match=r"bad\.yaml cannot be read"):
        Portfolio.load(tmp_path / "bad.yaml")


@pytest.mark.parametrize("select", ["portfolio", "random", "greedy", "guided"])
def test_every_strategy_measures_the_portfolio_first(select: str, tmp_path: Path) -> None:
    words = [f"search.select={select}", "search.runs=260", "search.guided.first=4"]
    assert main([*SEARCH, *words, f"run.dir={tmp_path}", "run.name=one"]) == 0
    (record,) = records(tmp_path / "one").values()
    listed = [row for row in record.rows[1:] if row.edit.startswith("portfolio: ")]
    assert [row.number for row in listed] == list(range(1, len(listed) + 1))
    assert all(row.runs >= 3 for row in listed)
    edited = len(record.rows) - len(listed) - 1
    assert (edited == 0) == (select == "portfolio")
    assert sum(row.runs for row in record.rows) <= 260
