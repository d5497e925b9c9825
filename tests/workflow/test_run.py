"""The interpreter: lazy, bounded, every call on record; failures are recorded, not raised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from tests.workflow import programs
from tests.workflow.programs import built, ensemble, simulated
from toolwright.config.schema import Reward
from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.providers import ChatReply
from toolwright.providers.budget import BudgetSpent
from toolwright.rewards import Scorer
from toolwright.tools.toolbox import Toolbox
from toolwright.trajectory import Task
from toolwright.workflow.evaluate import TaskEvaluator, WorkflowOutcome
from toolwright.workflow.graph import PROBLEM, Node, Ref, WorkflowLimits
from toolwright.workflow.interpreter import Step, Trace, WorkflowInterpreter
from toolwright.workflow.operators import Operator, Port, operator
from toolwright.workflow.operators.review import Review
from toolwright.workflow.program import Workflow, single_call

TASK = Task("t1", [{"role": "user", "content": "What is 6 times 7?"}], "42", "numeric")


class Says:
    """A chat that answers by a function of the prompt, after a while."""

    name = "says"

    def __init__(self, answer: Callable[[str], str], *, wait_s: float = 0.0, cost: float = 0.01) -> None:
        self.answer, self.wait_s, self.cost = answer, wait_s, cost
        self.asked: list[tuple[str, int | None]] = []
        self.under_way = self.most = 0

    async def complete(self, messages: list[dict[str, Any]], **how: Any) -> ChatReply:
        self.asked.append((messages[-1]["content"], how.get("seed")))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(self.wait_s)
        self.under_way -= 1
        return ChatReply(self.answer(messages[-1]["content"]), (), 10, 5, self.cost)


def ran(workflow: Workflow, chat: Says, **how: Any) -> Trace:
    return asyncio.run(WorkflowInterpreter(chat, **how).run(workflow, TASK))


def test_a_prompt_stands_before_the_problem() -> None:
    chat = Says(lambda prompt: "42")
    trace = ran(single_call(prompt="Think."), chat)
    assert [prompt for prompt, _ in chat.asked] == ["Think.\nWhat is 6 times 7?"]
    assert (trace.answer, trace.failure, trace.tokens, trace.cost) == ("42", "", 15, 0.01)


def test_samples_have_seeds_of_their_own_that_follow_from_names() -> None:
    def seeds() -> list[int | None]:
        chat = Says(lambda prompt: "<solution_letter>B</solution_letter>")
        ran(ensemble(), chat)
        return [seed for _, seed in chat.asked]

    assert len(set(seeds())) == 4
    assert seeds() == seeds()


def test_the_branch_that_is_not_taken_costs_nothing() -> None:
    flow = built("add Revise after solve")

    def reviewed(result: str) -> list[str]:
        said = f"<review_result>{result}</review_result><feedback>bad</feedback>"
        chat = Says(lambda prompt: said if prompt.startswith("Examine") else "<solution>41</solution>")
        trace = ran(flow, chat)
        return [call.node for call in trace.calls]

    assert reviewed("true") == ["solve", "review"]
    assert reviewed("false") == ["solve", "review", "revise"]


def test_what_does_not_depend_on_each_other_runs_side_by_side() -> None:
    chat = Says(lambda prompt: "42", wait_s=0.2)
    trace = ran(ensemble(count=8), chat)
    assert len(trace.calls) == 9
    assert chat.most == 8


def test_an_unreadable_choice_is_counted_by_hand_and_noted() -> None:
    answers = iter(["41", "42", "42", "I cannot say"])
    trace = ran(ensemble(), Says(lambda prompt: next(answers)))
    assert trace.answer == "42"
    assert "no letter could be read" in trace.notes[0]


def test_votes_over_shuffled_solutions_do_not_follow_the_order() -> None:
    """The model takes whatever says 42, wherever it stands; a model that always says A has no favourite."""
    flow = built("add MdEnsemble after solve x 3", "set md_ensemble votes 4")
    answers = iter(["40", "41", "42"])

    def vote(prompt: str) -> str:
        if "<solution_letter>" not in prompt:
            return next(answers)
        place = prompt.index("\n42") - 2
        return f"<solution_letter>{prompt[place]}</solution_letter>"

    chat = Says(vote)
    trace = ran(flow, chat)
    assert trace.answer == "42"
    assert [call.node for call in trace.calls].count("md_ensemble") == 4
    assert len({prompt for prompt, _ in chat.asked if "<solution_letter>" in prompt}) > 1


@pytest.mark.parametrize(
    ("limits", "said", "calls"),
    [
        (WorkflowLimits(calls=2), "more than 2 calls", 2),
        (WorkflowLimits(tokens=20), "more than 20 tokens", 2),
        (WorkflowLimits(money=0.015), "more than $0.015", 2),
    ],
)
def test_a_limit_stops_the_workflow_and_charges_it(limits: WorkflowLimits, said: str, calls: int) -> None:
    chat = Says(lambda prompt: "42")
    chat.waits = False  # type: ignore[attr-defined]
    trace = ran(ensemble(count=5), chat, limits=limits)
    assert trace.answer is None
    assert trace.blame == "workflow"
    assert said in trace.failure
    assert len(trace.calls) == calls
    assert trace.cost == pytest.approx(0.01 * calls)


def test_time_is_a_limit_and_nothing_is_left_running() -> None:
    async def main() -> tuple[Trace, int]:
        trace = await WorkflowInterpreter(Says(str, wait_s=30), limits=WorkflowLimits(seconds=0.1)).run(
            ensemble(), TASK
        )
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


def evaluated(workflow: Workflow, chat: Says, tasks: list[Task], **how: Any) -> list[WorkflowOutcome]:
    evaluator = TaskEvaluator(WorkflowInterpreter(chat), Scorer(Reward(), default="numeric"), **how)
    return programs.evaluated(evaluator, workflow, tasks)


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


def test_a_registered_tool_is_an_operator() -> None:
    flow = built("add tool.calculator after solve")
    assert flow.calls == 1
    chat = Says(lambda prompt: "6 * 7")

    async def main() -> Trace:
        tools = Toolbox({"calculator": {}})
        try:
            return await WorkflowInterpreter(chat, tools=tools).run(flow, TASK)
        finally:
            await tools.close()

    assert asyncio.run(main()).answer == "42"
    with pytest.raises(UserError, match="there is no toolbox"):
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
    with pytest.raises(UserError, match="is not an operator"):
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
    world, evaluator = simulated(1, limits=WorkflowLimits(calls=1))
    outcomes = programs.evaluated(evaluator, ensemble(), world.tasks(2))
    assert all("refused" in outcome.failure for outcome in outcomes)


@pytest.mark.parametrize(
    ("solutions", "chosen"),
    [
        (["It is 4.", "The answer is 5.", "so 5"], "The answer is 5."),
        (["\\boxed{1{,}000}", "<answer>12</answer>", "12.0"], "<answer>12</answer>"),
        (["$1,200", "so 1200.", "3"], "$1,200"),
        (["The Seine", "a loire", "the Loire!"], "a loire"),
        (["", "7"], "7"),  # a program that did not run has no vote
        ([""], ""),
    ],
)
def test_a_vote_counts_final_answers_without_a_call(solutions: list[str], chosen: str) -> None:
    vote = operator("Vote")
    assert vote.calls({}) == 0
    assert asyncio.run(vote(None, {"solutions": solutions}, {})) == {"response": chosen}  # type: ignore[arg-type]
