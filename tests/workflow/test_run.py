"""A whole run of `workflow search`: its folder, its report, `show`, resuming, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolwright.cli import main
from toolwright.workflow.ask import Asking
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.program import single_call
from toolwright.workflow.propose import Editor
from toolwright.workflow.record import records

QUICK = [
    "workflow",
    "search",
    "--config",
    "quick",
    "search.runs=150",
    "search.tasks=15",
    "search.held_out=20",
]
SMALL = ["search.guided.first=5", "proposer.name=uniform"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    assert main([*QUICK, *SMALL, f"run.dir={folder}", "run.name=one"]) == 0
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


def test_with_a_policy_that_learns_while_it_searches(tmp_path: Path) -> None:
    words = [
        *QUICK,
        "search.runs=120",
        "search.guided.first=5",
        "proposer.every=4",
        "proposer.train=[run.threads=1]",
    ]
    assert main([*words, f"run.dir={tmp_path}", "run.name=three"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "three/metrics.jsonl").read_text().splitlines()]
    assert any("simulated/policy/policy/loss" in row for row in rows)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["search.runz=5"], "search.runs"),
        (["data=[gsm8k]"], "does not run data"),
        (["data=[gsm8k]", "executor.name=chat", "executor.chat.model=m"], "data prepare gsm8k"),
        (["data=[simulated-x]"], "simulated-N"),
        (["search.start=nowhere.json"], "nowhere.json"),
    ],
)
def test_mistakes_are_said_before_anything_is_written(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, *SMALL, *words, f"run.dir={tmp_path}", "run.name=wrong"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "wrong").exists()


<<<<<<< HEAD
def test_what_a_chat_model_answers_is_understood_or_refused() -> None:
    asking = Asking(None, Editor(("Custom", "ScEnsemble")), None, search="s")  # type: ignore[arg-type]
    good = asking.understood(single_call(), "Let us vote. <edit>add ScEnsemble after solve x 3</edit>")
    assert not good.failure
    assert "ScEnsemble" in good.workflow.operators
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
        assert bad.meaning != good.meaning
=======
def test_time_is_a_limit_and_nothing_is_left_running() -> None:
    async def main() -> tuple[Trace, int]:
        trace = await Interpreter(Says(str, wait_s=30), limits=Limits(seconds=0.1)).run(ensemble(), TASK)
        return trace, len(asyncio.all_tasks())

    trace, tasks = asyncio.run(main())
    assert "longer than 0.1 s" in trace.failure
    assert tasks == 1


def raising(error: Exception) -> Says:
    def answer(prompt: str) -> str:
        raise error

    return Says(answer)


@pytest.mark.parametrize(
    ("error", "blame"),
    [
        (InfrastructureFailure("the provider is gone"), "infrastructure"),
        (TaskFailure("the prompt is too long"), "workflow"),
        (KeyError("a bug of an operator"), "workflow"),
    ],
)
def test_failures_are_recorded_with_whose_they_are(error: Exception, blame: str) -> None:
    trace = ran(ensemble(), raising(error))
    assert trace.blame == blame
    assert str(error).strip("'") in trace.failure


@pytest.mark.parametrize("error", [UserError("a wrong key"), BudgetSpent("all of it")])
def test_what_the_user_must_mend_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        ran(ensemble(), raising(error))


def evaluated(workflow: Workflow, chat: Says, tasks: list[Task], **how: Any) -> list[Outcome]:
    evaluator = TaskEvaluator(Interpreter(chat), Scorer(Reward(), default="numeric"), **how)
    return asyncio.run(evaluator.evaluate(workflow, tasks))


def test_a_workflow_that_cannot_run_is_refused_without_a_call() -> None:
    chat = Says(lambda prompt: "42")
    refused = Workflow((Node("a", "Custom", {"input": (PROBLEM,)}, repeat=10_000),), (Ref("a", "response"),))
    (outcome,) = evaluated(refused, chat, [TASK])
    assert (outcome.score, outcome.blame, outcome.calls, chat.asked) == (0.0, "workflow", 0, [])
    assert "refused: node 'a': repeat=10000" in outcome.failure


def test_answers_are_scored_and_what_cannot_be_scored_counts_for_nobody() -> None:
    bad = Task("t2", TASK.prompt, "no number at all", "numeric")
    right, unknown = evaluated(single_call(), Says(lambda prompt: "It is 42."), [TASK, bad])
    assert (right.score, right.calls, right.counts) == (1.0, 1, True)
    assert not unknown.counts
    assert "could not be scored" in unknown.failure


def test_an_allowance_is_shared_by_all_tasks_of_a_workflow() -> None:
    tasks = [Task(f"t{i}", TASK.prompt, "42", "numeric") for i in range(5)]
    found = evaluated(
        single_call(), Says(lambda prompt: "42"), tasks, allowance=Allowance(calls=3), parallel=1
    )
    assert [outcome.score for outcome in found] == [1, 1, 1, 0, 0]
    assert "calls that the workflow may use" in found[-1].failure


def test_a_registered_tool_is_an_operator() -> None:
    flow = built("add tool.calculator after solve")
    assert flow.calls == 1
    chat = Says(lambda prompt: "6 * 7")

    async def main() -> Trace:
        tools = Toolbox({"calculator": {}})
        try:
            return await Interpreter(chat, tools=tools).run(flow, TASK)
        finally:
            await tools.close()

    assert asyncio.run(main()).answer == "42"
    with pytest.raises(UserError, match="none are configured"):
        ran(flow, chat)


class Shout(Operator):
    """A user's own."""

    name = "Shout"
    ports: ClassVar = {"input": Port()}
    fields: ClassVar = {"loud": "text"}

    async def __call__(
        self, step: Step, inputs: Mapping[str, Any], settings: Mapping[str, int]
    ) -> dict[str, Any]:
        return {"loud": inputs["input"].upper()}


def test_an_operator_of_ones_own_is_named_by_its_path() -> None:
    name = f"{__name__}:Shout"
    node = Node("loud", name, {"input": ("it is ", PROBLEM)})
    flow = Workflow((node,), (node.main,))
    assert not flow.problems()
    assert ran(flow, Says(str)).answer == "IT IS WHAT IS 6 TIMES 7?"
    with pytest.raises(UserError, match="is no operator"):
        Workflow((Node("x", f"{__name__}:TASK", {}),), (Ref("x", "y"),)).checked()


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("<review_result>True</review_result>", True),
        ("<review_result>false</review_result>", False),
        ("It is correct.", True),
        ("It is not correct.", False),
        ("no idea", False),
    ],
)
def test_a_review_is_read_with_doubt(said: str, right: bool) -> None:
    flow = Workflow(
        (
            Node("r", "Review", {"problem": (PROBLEM,), "solution": ("42",)}),
            Node("c", "Choose", {"on": (Ref("r", "review_result"),), "then": ("yes",), "otherwise": ("no",)}),
        ),
        (Ref("c", "value"),),
    )
    assert ran(flow, Says(lambda prompt: said)).answer == ("yes" if right else "no")
    assert Review().calls({}) == 1


def test_simulated_worlds_run_through_the_same_interpreter() -> None:
    world, evaluator = simulated(1, limits=Limits(calls=1))
    outcomes = asyncio.run(evaluator.evaluate(ensemble(), world.tasks(2)))
    assert all("refused" in outcome.failure for outcome in outcomes)
>>>>>>> 228cda233ddfc92904febdb5679fade64ffa202a
