"""AFlow's selection as published, how the other strategies share runs, and the tree that all of them grow."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwright.workflow.config import Aflow, Guided, SearchConfig
from toolwright.workflow.pool import Payment
from toolwright.workflow.program import single_call
from toolwright.workflow.proposers import Editor
from toolwright.workflow.selection import (
    STRATEGIES,
    AflowSelection,
    ArmSelection,
    GreedySelection,
    GuidedSelection,
    PortfolioSelection,
    build_selection,
    mixed,
)
from toolwright.workflow.tree import Candidate, Proposal, Tree, schedule

EDITOR = Editor(["Custom", "AnswerGenerate", "ScEnsemble"], {"STEPS": "Think step by step."})


def scored(candidate: Candidate, score: float, runs: int = 10) -> None:
    candidate.runs = {
        (f"t{n}", 0): Payment("s", "w", f"t{n}", 0, float(n < score * runs), 0.1, 1) for n in range(runs)
    }


def ordered(count: int = 10) -> list[str]:
    return [f"t{n}" for n in range(count)]


def grown(scores: list[float], start: float = 0.5) -> Tree:
    """A start and one child a score."""
    tree = Tree(single_call())
    scored(tree.start, start)
    tree.offer(tree.start, [Proposal(edit, made) for edit, made in EDITOR.edits(single_call()).items()])
    for score in scores:
        scored(tree.take_up(tree.start, tree.fresh(tree.start)[0]), score)
    return tree


def test_the_best_has_finished_its_first_runs() -> None:
    aflow = AflowSelection(Aflow(), schedule([f"t{n}" for n in range(10)], 1))
    for selection in (aflow, GuidedSelection(Guided(first=8), ordered())):
        tree = grown([0.6, 0.7])
        scored(tree.take_up(tree.start, tree.fresh(tree.start)[0]), 1.0, runs=2)
        selection.look(tree)
        assert selection.best(tree).number == 2


@pytest.mark.parametrize(
    ("scores", "converged"),
    [
        ([0.9, 0.8, 0.7, 0.1, 0.2, 0.3, 0.4, 0.1], True),
        ([0.9, 0.8, 0.7, 0.1, 0.2, 0.3, 0.4], False),  # four rounds
        ([0.9, 0.8, 0.7, 0.1, 0.2, 0.3, 0.4, 0.8], False),  # the third best is better
        ([0.5], False),
    ],
)
def test_aflow_converges_when_its_three_best_stay_for_five_rounds(
    scores: list[float], converged: bool
) -> None:
    selection = AflowSelection(Aflow(), schedule([f"t{n}" for n in range(10)], 1))
    assert selection.converged(grown(scores)) is converged


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_the_mixture_is_the_published_one(scores: list[float]) -> None:
    found = mixed(scores, alpha=0.2, mix=0.3)
    weights = [math.exp(0.2 * (score - max(scores))) for score in scores]
    wanted = [0.3 / len(scores) + 0.7 * weight / sum(weights) for weight in weights]
    assert found == pytest.approx(wanted)
    assert found.sum() == pytest.approx(1.0)


def test_aflow_chooses_among_the_start_and_the_best_others() -> None:
    tree = grown([0.1, 0.9, 0.7, 0.6, 0.8])
    selection = AflowSelection(Aflow(top=4), schedule([f"t{n}" for n in range(10)], 1))
    counts = dict.fromkeys(range(6), 0)
    rng = random.Random(0)
    for _ in range(4000):
        parent = selection.parent(tree, rng)
        assert parent is not None
        counts[parent.number] += 1
    # By score: 2 (90), 5 (80), 3 (70), and the start (50), which is always among them.
    wanted = mixed([90, 80, 70, 50], alpha=0.2, mix=0.3)
    shares = [counts[n] / 4000 for n in (2, 5, 3, 0)]
    assert shares == pytest.approx(list(wanted), abs=0.03)
    assert counts[1] == counts[4] == 0


def test_aflow_runs_every_candidate_on_every_task_as_often_as_it_says() -> None:
    selection = AflowSelection(Aflow(repeats=5), schedule(["a", "b"], 5))
    assert len(selection.first_runs(Candidate(1, single_call()))) == 10


def test_workflows_of_one_meaning_are_one_candidate() -> None:
    tree = Tree(single_call())
    edits = EDITOR.edits(single_call())
    twice = [Proposal(edit, made) for edit, made in edits.items() for _ in range(2)]
    tree.offer(tree.start, twice)
    assert len(tree.start.options) == len(edits)
    child = tree.take_up(tree.start, tree.fresh(tree.start)[0])
    back = [
        made
        for made in EDITOR.edits(child.workflow).values()
        if made.fingerprint == single_call().fingerprint
    ]
    tree.offer(child, [Proposal("back", made) for made in back])
    assert tree.fresh(child) == []


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_a_tree_keeps_its_books(data: st.DataObject) -> None:
    """However it grows: every parent is older and knows its children, no meaning comes twice."""
    tree = Tree(single_call())
    for _ in range(data.draw(st.integers(0, 6))):
        parent = tree[data.draw(st.integers(0, len(tree) - 1))]
        if not parent.offered:
            tree.offer(parent, [Proposal(e, made) for e, made in EDITOR.edits(parent.workflow).items()])
        options = tree.fresh(parent)
        if options:
            tree.take_up(parent, options[data.draw(st.integers(0, len(options) - 1))])
    assert len({c.workflow.fingerprint for c in tree}) == len(tree) == len(tree.by_fingerprint)
    assert tree.start.parent is None
    for candidate in tree.candidates[1:]:
        assert candidate.parent is not None
        assert candidate.parent < candidate.number
        assert candidate.number in tree[candidate.parent].children


def test_runs_are_made_in_one_order_so_that_they_can_be_compared() -> None:
    selection = AflowSelection(Aflow(), schedule(["a", "b"], 2))
    candidate = Candidate(0, single_call())
    assert selection.first_runs(candidate) == (("a", 0), ("b", 0), ("a", 1), ("b", 1))
    candidate.runs = {("a", 0): Payment("s", "w", "a", 0, 1.0, 0.0, 1)}
    assert selection.first_runs(candidate) == (("b", 0), ("a", 1), ("b", 1))


def test_the_portfolio_shares_its_tasks_and_edits_begin_at_different_ones() -> None:
    candidates = [Candidate(number, single_call()) for number in range(5)]
    for kind in (GuidedSelection, PortfolioSelection):
        selection = kind(Guided(first=3), ordered(12), carried=2)
        start, *others = ({task for task, _ in selection.first_runs(one)} for one in candidates)
        assert others[0] == others[1] == start
        assert not others[2] & others[3]


def test_when_every_run_is_made_the_rest_goes_into_new_candidates() -> None:
    tree = grown([0.2])
    selection = GuidedSelection(Guided(first=10, repeats=1), ordered(10))
    selection.look(tree)
    assert selection.races(tree, rng=random.Random(0)) == ([], True)


def test_the_chosen_one_is_expected_to_score_less_than_its_estimate() -> None:
    """Of 30 that are all alike, the luckiest is believed near the truth."""
    rng = random.Random(1)
    tree = Tree(single_call())
    tree.offer(tree.start, [Proposal(edit, made) for edit, made in EDITOR.edits(single_call()).items()])
    while options := tree.fresh(tree.start):
        tree.take_up(tree.start, options[0])
    for candidate in tree:
        drawn = {(f"t{n}", 0): float(rng.random() < 0.5) for n in range(20)}
        candidate.runs = {run: Payment("s", "w", run[0], 0, score, 0.1, 1) for run, score in drawn.items()}
    selection = GuidedSelection(Guided(), ordered(20))
    selection.look(tree)
    best = selection.best(tree)
    assert max(c.mean for c in tree) > 0.65
    assert 0.5 < selection.expected(best) < selection.score(best)[0] < 0.62


def test_the_only_one_was_not_chosen_and_is_expected_to_score_its_estimate() -> None:
    """However little is known of it: there was no luck in a choice among one."""
    tree = grown([])
    selection = GuidedSelection(Guided(), ordered())
    scored(tree.start, 0.25, runs=4)
    selection.look(tree)
    assert selection.expected(tree.start) == pytest.approx(selection.score(tree.start)[0])


@pytest.mark.parametrize("kind", [GuidedSelection, GreedySelection])
def test_more_runs_go_to_those_who_may_be_best(kind: type[ArmSelection]) -> None:
    tree = grown([0.9, 0.1, 0.85, 0.0], start=0.3)
    tree.start.options = []
    selection = kind(Guided(first=5), ordered(20))
    selection.look(tree)
    jobs, _ = selection.races(tree, rng=random.Random(0))
    assert {job.candidate for job in jobs} <= {1, 3}
    assert all(len(job.runs) == 5 for job in jobs)


def test_the_only_candidate_is_edited_since_more_runs_of_it_change_no_choice() -> None:
    tree = grown([])
    selection = GuidedSelection(Guided(first=5), ordered(200))
    selection.look(tree)
    assert selection.races(tree, rng=random.Random(0)) == ([], True)


def test_the_runs_left_are_made_when_no_further_candidate_may_be_taken_up() -> None:
    """A proposer of refused edits fills the tree before the budget is spent."""
    tree = grown([])
    selection = GuidedSelection(Guided(first=5), ordered(200), runs=0)
    selection.look(tree)
    jobs, more = selection.races(tree, rng=random.Random(0))
    assert [job.candidate for job in jobs] == [0]
    assert not more


def test_the_edits_of_the_best_are_asked_for_before_a_round_is_decided() -> None:
    tree = grown([0.2, 0.9])
    selection = GuidedSelection(Guided(first=5), ordered(20))
    selection.look(tree)
    wanting = selection.unlisted(tree, random.Random(0))
    assert wanting is not None
    assert wanting.number == 2
    tree.offer(wanting, [Proposal(edit, made) for edit, made in EDITOR.edits(wanting.workflow).items()])
    assert selection.unlisted(tree, random.Random(0)) is None


def test_the_portfolio_shares_the_budget_evenly_and_edits_nothing() -> None:
    tree = grown([0.8, 0.1])
    selection = PortfolioSelection(Guided(first=4), ordered(20))
    selection.look(tree)
    jobs, more = selection.races(tree, rng=random.Random(0))
    assert [(job.candidate, len(job.runs)) for job in jobs] == [(0, 4), (1, 4), (2, 4)]
    assert not more
    assert selection.parent(tree, random.Random(0)) is None


def test_greedy_edits_the_best() -> None:
    tree = grown([0.2, 0.9, 0.4])
    selection = GreedySelection(Guided(), ordered())
    selection.look(tree)
    parent = selection.parent(tree, random.Random(0))
    assert parent is not None
    assert parent.number == 2


@pytest.mark.parametrize("name", [*STRATEGIES, "aflow"])
def test_the_opening_takes_a_quarter_of_the_budget(name: str) -> None:
    search = SearchConfig(select=name, runs=200)
    selection = build_selection(search, [f"t{n}" for n in range(40)], carried=9, prior=None)
    if isinstance(selection, ArmSelection):
        assert len(selection.first_runs(Candidate(0, single_call()))) == 5
    else:
        assert isinstance(selection, AflowSelection)
