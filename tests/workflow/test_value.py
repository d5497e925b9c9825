"""The value: what one workflow taught is shared with those that resemble it, and with later searches."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest

from toolwright.workflow.features import Columns, Features, features
from toolwright.workflow.pool import Experience, ExperiencePool
from toolwright.workflow.prior import Prior, ScoredWorkflows
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.proposers import Editor
from toolwright.workflow.value import Belief, knowledge_gradient

EDITOR = Editor(("Custom", "AnswerGenerate", "ScEnsemble", "Format"))


def made(*edits: str) -> Workflow:
    workflow = single_call()
    for edit in edits:
        workflow = EDITOR.edits(workflow)[edit]
    return workflow


FORMAT = made("add Format after solve")
VOTE = made("add ScEnsemble after solve x 3")
BOTH = made("add ScEnsemble after solve x 3", "add Format after sc_ensemble")


def runs(right: float, tasks: range = range(40)) -> list[tuple[str, float]]:
    return [(f"t{n}", float((n * 7) % 40 < 40 * right)) for n in tasks]


def believed(*, shared: bool = True) -> Belief:
    belief = Belief(Columns(), features(single_call()), shared=shared)
    belief.fit([features(single_call()), features(FORMAT)], [runs(0.4), runs(0.8)])
    return belief


def untried(belief: Belief, *found: Features) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of workflows that never ran."""
    mean, _, variance = belief.together(found)
    ran = len(belief.mean)
    return mean[ran:], np.sqrt(variance[ran:])


def test_what_format_taught_is_expected_of_others_that_end_with_it() -> None:
    (both, vote), (sd_both, sd_vote) = untried(believed(), features(BOTH), features(VOTE))
    assert both > vote + 0.05
    assert min(sd_both, sd_vote) > 0.03


def test_who_ran_is_believed_by_its_runs() -> None:
    belief = believed()
    assert belief.mean == pytest.approx([0.4, 0.8], abs=0.06)
    assert 0.02 < belief.sd[1] < 0.1


def test_left_to_itself_a_workflow_teaches_nothing_about_others() -> None:
    mean, _ = untried(believed(shared=False), features(BOTH), features(VOTE))
    assert mean[0] == pytest.approx(mean[1])


def test_a_gain_is_measured_on_the_tasks_that_both_ran_on() -> None:
    """The start fails hard tasks; who ran on those alone, and solved half of them, is the better one."""
    start = [(f"t{n}", float(n < 20)) for n in range(40)]
    few = [(f"t{n}", float(n % 2)) for n in range(20, 40)]
    belief = Belief(Columns(), features(single_call()), shared=False)
    belief.fit([features(single_call()), features(FORMAT)], [start, few])
    assert belief.mean[1] > belief.mean[0]


def test_of_many_equal_workflows_the_luckiest_is_not_believed() -> None:
    """The winner's curse: the best of 60 that are all alike has a high mean, and a sober estimate."""
    rng = np.random.default_rng(0)
    scores = [[(f"t{n}", float(hit)) for n, hit in enumerate(rng.random(16) < 0.5)] for _ in range(60)]
    belief = Belief(Columns(), {}, shared=False)
    belief.fit([{}] * 60, scores)
    luckiest = max(np.mean([score for _, score in mine]) for mine in scores)
    assert luckiest > 0.7
    assert belief.mean.max() < 0.56


def test_the_same_task_again_counts_for_less_than_another_one() -> None:
    belief = Belief(Columns(), {}, shared=False)
    again = [(f"t{n % 10}", float(n % 10 < 8)) for n in range(40)]
    belief.fit([{}, {}], [again, runs(0.8)])
    assert belief.sd[0] > belief.sd[1]


def test_those_that_ran_are_believed_the_same_beside_others() -> None:
    belief = believed()
    mean, cov, variance = belief.together([features(BOTH)])
    assert mean[:2] == pytest.approx(belief.mean)
    assert cov[:, :2] == pytest.approx(belief.cov)
    assert variance[:2] == pytest.approx(np.diag(belief.cov))


def gains(mean: list[float], sd: list[float], *, ran: int | None = None, runs: int = 10) -> np.ndarray:
    cov = np.diag(np.square(sd))
    return knowledge_gradient(np.array(mean), cov[:ran], np.diag(cov), noise=0.2, runs=runs)


def test_runs_are_worth_what_they_may_change_in_the_choice() -> None:
    """Of two, by the formula for independent ones: s (z Φ(z) + φ(z)), s = sd² / √(sd² + noise / runs)."""
    s = 0.1**2 / np.sqrt(0.1**2 + 0.02)
    z = -0.05 / s
    normal = statistics.NormalDist()
    assert gains([0.5, 0.45], [0.0, 0.1])[1] == pytest.approx(
        s * (z * normal.cdf(z) + normal.pdf(z)), rel=0.03
    )
    close, far = gains([0.5, 0.45, 0.2], [0.0, 0.1, 0.1])[1:]
    assert close > far >= 0
    assert gains([0.5, 0.45], [0.0, 0.1], runs=20)[1] > close


def test_an_untried_workflow_is_weighed_against_those_that_ran() -> None:
    """Nobody can choose another one that did not run, however good it is believed to be."""
    first, second = gains([0.5, 0.6, 0.6], [0.0, 0.1, 0.1], ran=1)[1:]
    assert first == pytest.approx(second)
    assert first > 0.1


def test_earlier_searches_are_where_a_search_begins(tmp_path: Path) -> None:
    pool = ExperiencePool(tmp_path / "pool.db")
    for number in range(6):
        told = [(single_call(), 0.4), (FORMAT, 0.6), (VOTE, 0.45), (BOTH, 0.66)]
        for place, (workflow, score) in enumerate(told):
            pool.keep_workflow(workflow.fingerprint, workflow.to_json())
            one = Experience(
                f"s{number}", place, f"d{number}", "a", "", "", "", workflow.fingerprint, 0.4, score, 40
            )
            pool.learn([one])
    prior = Prior.from_pool(pool)
    assert prior.mean["has Format"] > prior.mean["has ScEnsemble"]
    belief = Belief(Columns(), features(single_call()), prior=prior)
    belief.fit([features(single_call())], [runs(0.4)])
    (form, vote), _ = untried(belief, features(FORMAT), features(VOTE))
    assert form > belief.mean[0] + 0.1
    assert form > vote + 0.05
    assert Prior.from_pool(pool, without=[f"d{n}" for n in range(6)]) == Prior()


def data_set(rng: np.random.Generator, common: dict[str, float], spread: float) -> ScoredWorkflows:
    """Scores by weights that all data sets share, and by others of its own."""
    found = [features(w) for w in (single_call(), FORMAT, VOTE, BOTH)]
    names = sorted({name for one in found for name in one})
    own = {name: common.get(name, 0.0) + spread * rng.standard_normal() for name in names}
    level = rng.uniform(0.3, 0.6)
    scored = [
        (one, level + sum(own[n] * one[n] for n in one) + 0.01 * rng.standard_normal(), 2000) for one in found
    ]
    return ScoredWorkflows(found[0], scored)


def test_data_sets_that_agree_leave_less_doubt_than_those_that_differ() -> None:
    rng, common = np.random.default_rng(0), {"has Format": 0.2}
    agreeing, differing = (Prior.fit([data_set(rng, common, s) for _ in range(12)]) for s in (0.0, 0.15))
    for prior in (agreeing, differing):
        belief = Belief(Columns(), features(single_call()), prior=prior)
        belief.fit([features(single_call())], [runs(0.4)])
        (form, vote), _ = untried(belief, features(FORMAT), features(VOTE))
        assert form > vote + 0.08
    assert np.mean(list(differing.variance.values())) > 3 * np.mean(list(agreeing.variance.values()))


def test_a_feature_that_no_data_set_had_gets_the_variance_of_its_kind() -> None:
    rng = np.random.default_rng(1)
    prior = Prior.fit([data_set(rng, {}, 0.2) for _ in range(8)])
    belief = Belief(Columns(), features(single_call()), prior=prior)
    belief.fit([features(single_call())], [runs(0.4)])
    _, doubt = untried(belief, {**features(single_call()), "has Other": 1.0}, features(single_call()))
    assert doubt[0] > doubt[1]
    assert prior.unmet["has"] > 0
