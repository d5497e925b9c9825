"""A whole run of `workflow search`: its folder, its report, `show`, resuming, and mistakes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.programs import operators_of
from toolwright.cli import main
from toolwright.providers import ChatReply
from toolwright.trajectory import Task
from toolwright.workflow.aflow.folder import Folder
from toolwright.workflow.apply import applied
from toolwright.workflow.edits import parse
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.program import single_call
from toolwright.workflow.proposers import ChatProposer, Editor, WorkflowState
from toolwright.workflow.record import records, summary

QUICK = ["workflow", "search", "--config", "quick", "search.tasks=15", "search.held_out=20"]
SMALL = ["search.guided.first=5", "proposer.name=uniform"]
TABLES = Path(__file__).parents[2] / "docs/results/workflow-qwen2.5-coder-1.5b.json.gz"
RECORDED = ["executor.name=recorded", f"executor.table={TABLES}"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    assert main([*QUICK, *SMALL, "search.runs=150", f"run.dir={folder}", "run.name=one"]) == 0
    return folder / "one"


def test_a_run_ends_with_the_best_its_score_and_the_report(run: Path) -> None:
    (record,) = records(run).values()
    assert record.why in ("budget", "converged")
    assert set(record.held_out) == {"start", "best"}
    assert record.path[0].number == 0
    assert record.path[-1].number == record.best
    page = (run / "report.html").read_text()
    for said in (
        "Best workflow",
        "The way to it",
        "Every candidate",
        "<svg",
        "class Workflow",
        "single call",
    ):
        assert said in page
    assert "<script" not in page
    graph = (run / "best/simulated/graph.py").read_text()
    assert "async def __call__" in graph
    assert ExperiencePool(run / "pool.db").spent()[0] == 40 + sum(row.runs for row in record.rows)


def test_the_summary_says_what_to_expect_of_the_best(run: Path) -> None:
    (record,) = records(run).values()
    assert f"{100 * record.expected:.1f} % expected on other tasks" in summary("simulated", record)
    assert 0 < record.expected < record.winner.score


def test_show_draws_the_tree(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflow", "show", str(run), "--full"]) == 0
    told = capsys.readouterr().out
    (record,) = records(run).values()
    for row in record.rows:
        assert row.edit in told
    for said in ("the way to it", "cost against score", "class Workflow", "of the start"):
        assert said in told


def test_to_go_on_with_a_run_that_is_over_costs_nothing(run: Path) -> None:
    before = json.loads((run / "searches/simulated.json").read_text())
    paid = ExperiencePool(run / "pool.db").spent()
    words = ["workflow", "search", f"run.dir={run.parent}", "run.name=one", "run.resume=true"]
    assert main(words) == 0
    assert json.loads((run / "searches/simulated.json").read_text()) == before
    assert ExperiencePool(run / "pool.db").spent() == paid


def test_a_search_starts_where_another_ended(run: Path, tmp_path: Path) -> None:
    start = f"search.start={run / 'best/simulated'}"
    assert main([*QUICK, *SMALL, start, "search.runs=40", f"run.dir={tmp_path}", "run.name=next"]) == 0
    (before,), (after,) = records(run).values(), records(tmp_path / "next").values()
    assert after.start.workflow.fingerprint == before.winner.workflow.fingerprint


def test_a_search_is_a_folder_of_aflows(run: Path) -> None:
    """Read by the rules of AFlow's own readers: a mean by round, what a father's children changed."""
    (record,) = records(run).values()
    place = run / "workspace/simulated/workflows"
    rounds = Folder(run / "workspace/simulated").rounds()
    ran = [row for row in record.rows if row.runs and not row.failure]
    assert [round.number for round in rounds] == [row.number + 1 for row in ran]
    for round, row in zip(rounds, ran, strict=True):
        assert round.workflow is not None
        assert round.workflow.fingerprint == row.workflow.fingerprint
        assert round.score == pytest.approx(row.score)
        assert round.average_cost == pytest.approx(row.cost)
        assert round.total_cost == pytest.approx(row.cost * row.runs)
        if row.parent is None:
            assert round.experience is None
        else:
            assert round.experience is not None
            assert (round.experience.father, round.experience.modification) == (row.parent + 1, row.edit)
    results = json.loads((place / "results.json").read_text())
    top = max(results, key=lambda entry: entry["score"])
    assert top["round"] == record.best + 1
    processed = json.loads((place / "processed_experience.json").read_text())
    assert (
        sum(len(one[kind]) for one in processed.values() for kind in ("success", "failure")) == len(ran) - 1
    )
    logged = json.loads((place / "round_1/log.json").read_text())
    assert {"question", "right_answer", "score"} <= set(logged[0])
    assert (place / "round_1/graph.py").read_text().startswith(("from typing", "import"))


def test_a_search_of_aflows_is_gone_on_with(run: Path, tmp_path: Path) -> None:
    before = Folder(run / "workspace/simulated")
    told = before.rounds()
    words = [f"search.start={before.path}", "search.runs=80", f"run.dir={tmp_path}", "run.name=on"]
    assert main([*QUICK, *SMALL, *words]) == 0
    (record,) = records(tmp_path / "on").values()
    best = sorted(told[1:], key=lambda one: -(one.score or 0.0))[:3]
    assert [row.edit.partition(":")[0] for row in record.rows[1:4]] == [f"round {one.number}" for one in best]
    after = {one.number: one for one in Folder(tmp_path / "on/workspace/simulated").rounds()}
    assert set(after) >= {one.number for one in told}  # nothing of theirs is lost
    for one in told:
        assert after[one.number].experience == one.experience
    last = told[-1].number
    new = [row for row in record.rows[4:] if row.runs and not row.failure]
    assert [number for number in sorted(after) if number > last] == [last + row.number - 3 for row in new]
    assert all(after[last + row.number - 3].workflow.fingerprint == row.workflow.fingerprint for row in new)  # type: ignore[union-attr]


def test_a_budget_too_small_for_the_portfolio_is_spent_on_edits(tmp_path: Path) -> None:
    words = [*QUICK, "search.runs=10", f"run.dir={tmp_path}", "run.name=ten"]
    assert main(words) == 0
    (record,) = records(tmp_path / "ten").values()
    assert sum(row.runs for row in record.rows) == 10
    assert record.why == "budget"


def test_a_tool_is_an_operator_of_a_search_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*QUICK, *SMALL, "search.runs=60", f"run.dir={tmp_path}"]
    tool = ["search.portfolio=none", "search.operators=[Custom,tool.calculator]"]
    assert main([*words, *tool, "run.name=tool"]) == 0
    (record,) = records(tmp_path / "tool").values()
    assert any("tool.calculator" in row.edit and row.runs for row in record.rows)
    start = tmp_path / "start.json"
    start.write_text(json.dumps(applied(single_call(), parse("add tool.calculator after solve")).to_json()))
    assert main([*words, f"search.start={start}", "run.name=unnamed"]) == 2
    assert "needs tool.calculator among search.operators" in capsys.readouterr().err


def test_an_operator_of_ones_own_is_searched_and_written(tmp_path: Path) -> None:
    (tmp_path / "shout.py").write_text(
        "from toolwright.workflow.operators import Operator, Port\n\n\n"
        "class Shout(Operator):\n"
        "    name, ports, fields = 'Shout', {'input': Port()}, {'loud': 'text'}\n\n"
        "    async def __call__(self, step, inputs, settings):\n"
        "        return {'loud': inputs['input'].upper()}\n"
    )
    own = f"search.operators=[Custom,'{tmp_path / 'shout.py'}:Shout']"
    words = [*QUICK, *SMALL, own, "search.portfolio=none", "search.runs=60", f"run.dir={tmp_path}"]
    assert main([*words, "run.name=own"]) == 0
    rounds = (tmp_path / "own/workspace/simulated/workflows").glob("round_*/graph.py")
    assert any("self.shout = operator.Shout(self.llm)" in file.read_text() for file in rounds)
    assert main(["workflow", "show", str(tmp_path / "own"), "--full"]) == 0


def test_other_searches_teach_a_small_budget_alone(run: Path, tmp_path: Path) -> None:
    words = [*QUICK, *SMALL, "data=[simulated-9]", f"search.pool={run / 'pool.db'}", f"run.dir={tmp_path}"]
    for name, runs in (("small", 60), ("large", 501)):
        assert main([*words, f"search.runs={runs}", f"run.name={name}"]) == 0
    assert json.loads((tmp_path / "small/prior_math.json").read_text())["names"]
    assert not (tmp_path / "large/prior_math.json").exists()


@pytest.mark.parametrize("form", ["python", "aflow"])
def test_an_export_that_cannot_be_written_is_one_sentence(
    form: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "taken"
    place.mkdir() if form == "python" else place.write_text("a file")
    assert main(["workflow", "export", str(run), "--as", form, "--out", str(place)]) == 2
    said = capsys.readouterr().err.strip()
    assert "taken cannot be written" in said
    assert len(said.splitlines()) == 1


def test_a_recording_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflow", "record", str(tmp_path / "tables.json.gz"), "--repeats", "0"]) == 2
    assert "expected a whole number from 1 on, found '0'" in capsys.readouterr().err


def test_several_data_sets_are_searched_side_by_side(tmp_path: Path) -> None:
    words = [
        *QUICK,
        *SMALL,
        "data=[simulated-1,simulated-2]",
        "search.runs=60",
        f"run.dir={tmp_path}",
        "run.name=two",
    ]
    assert main(words) == 0
    assert set(records(tmp_path / "two")) == {"simulated-1", "simulated-2"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["search.runz=5"], "search.runs"),
        (["data=[gsm8k]"], "cannot run data"),
        (["data=[gsm8k]", "executor.name=chat", "executor.chat.model=m"], "data prepare gsm8k"),
        (["data=[simulated-x]"], "simulated-N"),
        (["search.start=nowhere.json"], "nowhere.json"),
        (["search.operators=[Custom,ScEnsembel]"], "did you mean 'ScEnsemble'?"),
        ([*RECORDED, "data=[gsm9k]"], "did you mean 'gsm8k'?"),
        ([f"search.pool={__file__}"], "cannot be used as an experience pool"),
        (["search.pool=/dev/null/pool.db"], "cannot be used as an experience pool"),
    ],
)
def test_mistakes_are_reported_before_anything_is_written(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, *SMALL, *words, f"run.dir={tmp_path}", "run.name=wrong"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [([], "set search.tasks=80"), (["search.tasks=80", "search.held_out=400"], "set search.held_out=160")],
)
def test_too_few_recorded_tasks_are_reported_before_anything_is_written(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["data=[gsm8k]", f"run.dir={tmp_path}", "run.name=wrong"]
    assert main(["workflow", "search", *RECORDED, *words, *where]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "wrong").exists()


def test_what_a_chat_model_answers_is_understood_or_refused() -> None:
    asking = ChatProposer(None, Editor(("Custom", "ScEnsemble")), None, search="s")  # type: ignore[arg-type]
    good = asking.understood(single_call(), "Let us vote. <edit>add ScEnsemble after solve x 3</edit>")
    assert not good.failure
    assert "ScEnsemble" in operators_of(good.workflow)
    new = asking.understood(single_call(), '<edit>set solve prompt SLOW="Take your time."</edit>')
    assert new.workflow.prompts == {"SLOW": "Take your time."}
    for reply in (
        "I do not know",
        "<edit>fly</edit>",
        "<graph>import os</graph>",
        "<edit>remove nobody</edit>",
    ):
        bad = asking.understood(single_call(), reply)
        assert bad.failure
        assert bad.fingerprint != good.fingerprint


def test_the_last_proposal_is_a_reflection_on_failures() -> None:
    """The model is shown what went wrong and the words that a step is told, and writes better ones."""
    asked: list[str] = []

    class Thinker:
        async def complete(self, messages: list[dict[str, Any]], **settings: Any) -> ChatReply:
            asked.append(messages[-1]["content"])
            said = "<words>Mind the units.</words>" if "<words>" in asked[-1] else "<edit>fly</edit>"
            return ChatReply(said, (), 1, 1, 0.0, 0.0)

    task = Task("t1", [{"role": "user", "content": "How many metres?"}], ground_truth="5")
    editor = Editor(("Custom", "ScEnsemble"))
    proposer = ChatProposer(Thinker(), editor, None, search="s", proposals=2, tasks=[task])  # type: ignore[arg-type]
    steps = single_call(prompt="Think.")
    state = WorkflowState("s", "math", steps, 0.5, wrong=[("t1", "")])
    first, last = asyncio.run(proposer.propose(state, 0))
    assert first.failure
    assert list(last.workflow.prompts.values()) == ["Mind the units.\n"]
    assert parse(last.edit)
    assert all(said in asked[-1] for said in ("Think.", "How many metres?", "The right answer: 5"))
    right = WorkflowState("s", "math", steps, 1.0)
    assert all(one.failure for one in asyncio.run(proposer.propose(right, 0)))  # no failures, no reflection
    assert proposer.reworded(steps, steps.live[0], "nothing").failure
