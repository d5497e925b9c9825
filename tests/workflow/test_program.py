"""The typed workflow: what it means, what is wrong with it, what it may cost."""

from __future__ import annotations

import pickle
import random

import pytest
from hypothesis import given, settings

from tests.workflow.programs import DIVERSE, OPERATORS, built, ensemble, renamed, walks
from toolwright.failures import UserError
from toolwright.workflow.apply import legal
from toolwright.workflow.diagram import as_text
from toolwright.workflow.graph import PROBLEM, Node, Ref, WorkflowLimits
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.simulate import PROMPTS


def walked(places: list[int]) -> Workflow:
    workflow = single_call()
    for place in places:
        found = list(legal(workflow, OPERATORS, prompts=dict(list(PROMPTS.items())[:2])).values())
        workflow = found[place % len(found)]
    return workflow


def shuffled(workflow: Workflow, rng: random.Random) -> Workflow:
    """The same program with other names, another order, and something dead in it."""
    names = [f"n{i}" for i in range(len(workflow.nodes))]
    rng.shuffle(names)
    other = renamed(workflow, {node.name: name for node, name in zip(workflow.nodes, names)})  # noqa: B905
    prompts = {f"P_{i}": (name, text) for i, (name, text) in enumerate(workflow.prompts.items())}
    new = {old: name for name, (old, _) in prompts.items()}
    nodes = [
        Node(n.name, n.operator, n.inputs, new.get(n.prompt, ""), n.repeat, n.settings) for n in other.nodes
    ]
    nodes.append(Node("dead", "Custom", {"input": (PROBLEM, "and more")}, ""))
    rng.shuffle(nodes)
    texts = {name: f"  {text} " for name, (_, text) in prompts.items()}
    return Workflow(tuple(nodes), other.output, {**texts, "UNUSED": "words"})


@settings(deadline=None, max_examples=25)
@given(walks)
def test_names_order_and_dead_nodes_have_no_part_in_the_meaning(places: list[int]) -> None:
    workflow = walked(places)
    other = shuffled(workflow, random.Random(sum(places)))
    assert not other.problems()
    assert other.fingerprint == workflow.fingerprint
    assert other.calls == workflow.calls
    assert Workflow.from_json(workflow.to_json()) == workflow
    assert pickle.loads(pickle.dumps(workflow)).fingerprint == workflow.fingerprint


def test_samples_drawn_one_by_one_mean_the_same_as_a_repeated_node() -> None:
    ones = tuple(Node(f"s{i}", "Custom", {"input": (PROBLEM,)}, "P") for i in range(3))
    refs = tuple(node.main for node in ones)
    best = Node("best", "ScEnsemble", {"problem": (PROBLEM,), "solutions": refs})
    assert Workflow((best, *ones), (best.main,), {"P": "Think hard."}).fingerprint == ensemble().fingerprint


def test_a_sample_used_twice_is_not_two_samples() -> None:
    def two(first: str, second: str) -> Workflow:
        nodes = [Node(name, "Custom", {"input": (PROBLEM,)}) for name in dict.fromkeys((first, second))]
        look = Node("look", "Custom", {"input": (Ref(first, "response"), " and ", Ref(second, "response"))})
        return Workflow((*nodes, look), (look.main,))

    assert two("a", "a").fingerprint != two("a", "b").fingerprint
    assert two("a", "b").fingerprint == two("b", "a").fingerprint


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (ensemble(count=4), False),
        (Workflow(ensemble().nodes, ensemble().output, {"SOLVE": "Think  hard. "}), True),
        (Workflow(ensemble().nodes, ensemble().output, {"SOLVE": "Think harder."}), False),
        (Workflow(ensemble().nodes, (Ref("best", "response"), "!"), ensemble().prompts), False),
    ],
)
def test_what_is_done_is_the_meaning(other: Workflow, same: bool) -> None:
    assert (other.fingerprint == ensemble().fingerprint) is same


def test_a_choice_between_equals_is_none() -> None:
    test = {"problem": (PROBLEM,), "solution": (Ref("solve", "response"),)}
    review = Node("review", "Review", test)
    same = {"on": (Ref("review", "review_result"),), "then": (Ref("solve", "response"),)}
    choose = Node("choose", "Choose", {**same, "otherwise": same["then"]})
    solve = single_call().nodes[0]
    assert Workflow((solve, review, choose), (choose.main,)).fingerprint == single_call().fingerprint


def test_of_two_branches_the_dearer_one_bounds_the_calls() -> None:
    assert built("add Revise after solve").calls == 3
    assert built("add Programmer after solve").calls == 4
    assert built(*DIVERSE).calls == 6
    assert built(*DIVERSE).depth == 3


def one(**changes: object) -> Workflow:
    node = Node(**{"name": "a", "operator": "Custom", "inputs": {"input": (PROBLEM,)}, **changes})  # type: ignore[arg-type]
    return Workflow((node,), (Ref("a", "response"),), {"P": "words"})


@pytest.mark.parametrize(
    ("workflow", "said"),
    [
        (one(operator="Costum"), "unknown operator 'Costum'; did you mean 'Custom'?"),
        (one(prompt="Q"), "no prompt 'Q' is defined"),
        (one(inputs={}), "needs the input 'input'"),
        (one(inputs={"inputs": (PROBLEM,)}), "has no input 'inputs'; did you mean 'input'?"),
        (one(inputs={"input": (Ref("b", "response"),)}), "there is no node 'b'"),
        (one(inputs={"input": (Ref("a", "response"),)}), "reads its own output"),
        (one(inputs={"input": (Ref("task", "answer"),)}), "a task has no 'answer'"),
        (one(repeat=3), "several texts, but one is expected"),
        (one(repeat=10_000), "repeat=10000, expected 1 to 16"),
        (one(settings={"rounds": 2}), "has no setting 'rounds'"),
        (
            one(operator="Format", inputs={"problem": (PROBLEM,), "solution": (PROBLEM,)}),
            "makes no 'response'",
        ),
        (Workflow((), (PROBLEM,)), ""),
        (Workflow((), ()), "nothing is returned"),
        (Workflow(one().nodes * 2, one().output), "two nodes are called 'a'"),
    ],
)
def test_what_is_wrong_is_reported_before_any_call(workflow: Workflow, said: str) -> None:
    found = "; ".join(workflow.problems())
    assert (said in found) if said else not found
    if said:
        with pytest.raises(UserError, match="cannot run"):
            workflow.checked()


def test_limits_and_needs_are_held_to() -> None:
    assert "up to 4 calls" in ensemble().problems(WorkflowLimits(calls=3))[0]
    assert "2 nodes in a row" in ensemble().problems(WorkflowLimits(depth=1))[0]
    needs = built("add Programmer after solve").problems(offers=frozenset())
    assert "needs a sandbox to run code in, but there is none" in needs[0]


def test_a_cycle_among_dead_nodes_is_one() -> None:
    loop = [Node(n, "Custom", {"input": (Ref(m, "response"),)}) for n, m in (("x", "y"), ("y", "x"))]
    assert "reads its own output" in Workflow((*one().nodes, *loop), one().output).problems()[0]


def test_it_can_be_looked_at() -> None:
    assert as_text(ensemble()) == (
        "solve = Custom(problem) x3 with SOLVE\n"
        "best = ScEnsemble(problem, [solve.response])\n"
        "-> best.response"
    )


def test_simplifying_hides_no_mistake() -> None:
    wrong = one(prompt="Q")
    assert "no prompt 'Q' is defined" in wrong.simplified.problems()[0]
    assert wrong.fingerprint != one().fingerprint


def test_what_is_no_workflow_is_said_so() -> None:
    with pytest.raises(UserError, match="not a workflow in JSON"):
        Workflow.from_json("{}")
    with pytest.raises(UserError, match="is not a reference"):
        Workflow.from_json({"nodes": [], "output": [{"ref": "solve"}]})
