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


def gain(prior: Prior, found: Features) -> tuple[float, float]:
    """What a workflow is expected to gain over the start before anything ran: mean and sd."""
    columns = Columns()
    rows = columns.rows([features(single_call()), found])
    mean, cov = prior.weights(columns)
    x = rows[1] - rows[0]
    return float(x @ mean), float(np.sqrt(x @ cov @ x))


@pytest.mark.parametrize("kind", ["math", "math 4: solve = Custom(problem)"], ids=["now", "0.1"])
def test_earlier_searches_are_where_a_search_begins(kind: str, tmp_path: Path) -> None:
    pool = ExperiencePool(tmp_path / "pool.db")
    for number in range(6):
        told = [(single_call(), 0.4), (FORMAT, 0.6), (VOTE, 0.45), (BOTH, 0.66)]
        for place, (workflow, score) in enumerate(told):
            pool.keep_workflow(workflow.fingerprint, workflow.to_json())
            about = (f"s{number}", place, f"d{number}", "a", kind, "", "", workflow.fingerprint)
            pool.learn([Experience(*about, 0.4, score, 40)])
    belief = Belief(Columns(), features(single_call()), prior=Prior.from_pool(pool, "math"))
    belief.fit([features(single_call())], [runs(0.4)])
    (start, form, vote), _ = untried(belief, *map(features, (single_call(), FORMAT, VOTE)))
    assert form > start + 0.1
    assert form > vote + 0.05
    assert Prior.from_pool(pool, "math", without=[f"d{n}" for n in range(6)]) == Prior()


def data_set(
    rng: np.random.Generator, common: dict[str, float], spread: float, kind: str = "math"
) -> ScoredWorkflows:
    """Scores by weights that all data sets share, and by others of its own."""
    found = [features(w) for w in (single_call(), FORMAT, VOTE, BOTH)]
    names = sorted({name for one in found for name in one})
    own = {name: common.get(name, 0.0) + spread * rng.standard_normal() for name in names}
    level = rng.uniform(0.3, 0.6)
    scored = [
        (one, level + sum(own[n] * one[n] for n in one) + 0.01 * rng.standard_normal(), 2000) for one in found
    ]
    return ScoredWorkflows(kind, found[0], scored)


def test_data_sets_that_agree_leave_less_doubt_than_those_that_differ() -> None:
    rng, common = np.random.default_rng(0), {"has Format": 0.2}
    agreeing, differing = (
        Prior.fit([data_set(rng, common, s) for _ in range(12)], "math") for s in (0.0, 0.15)
    )
    for prior in (agreeing, differing):
        assert gain(prior, features(FORMAT))[0] > gain(prior, features(VOTE))[0] + 0.08
    assert gain(differing, features(FORMAT))[1] > 2 * gain(agreeing, features(FORMAT))[1]


def test_a_data_set_teaches_those_of_its_kind_alone() -> None:
    """Format helps with mathematics and harms code. A kind that nobody searched begins with nothing."""
    rng = np.random.default_rng(0)
    helps, harms = {"has Format": 0.2}, {"has Format": -0.2}
    known = [data_set(rng, helps, 0.01) for _ in range(2)]
    known += [data_set(rng, harms, 0.01, "code") for _ in range(2)]
    assert gain(Prior.fit(known, "math"), features(FORMAT))[0] > 0.1
    assert gain(Prior.fit(known, "code"), features(FORMAT))[0] < -0.1
    assert Prior.fit(known, "question") == Prior()


def test_how_much_a_kind_shares_is_learned_from_all_kinds() -> None:
    """One data set of mathematics teaches more if those of code are alike than if they differ."""
    rng = np.random.default_rng(3)
    one = data_set(rng, {"has Format": 0.2}, 0.0)
    alike = [data_set(rng, {"has Format": -0.2}, 0.0, "code") for _ in range(3)]
    differing = [data_set(rng, {"has Format": worth}, 0.0, "code") for worth in (-0.3, 0.0, 0.3)]
    much, little = (
        gain(Prior.fit([one, *others], "math"), features(FORMAT)) for others in (alike, differing)
    )
    assert much[0] > little[0] + 0.04
    assert much[1] < little[1]


def test_what_is_known_of_features_together_is_kept() -> None:
    """Features that always occur together: what they are worth in sum is known, and of none of them alone."""
    rng = np.random.default_rng(1)
    prior = Prior.fit([data_set(rng, {"has Format": 0.2}, 0.0) for _ in range(8)], "math")
    together, alone = features(FORMAT), {**features(single_call()), "has Format": 1.0}
    per_feature = 1 / np.sqrt(len(together.keys() - features(single_call()).keys()))
    assert gain(prior, together)[1] * per_feature < 0.5 * gain(prior, alone)[1]


def test_a_feature_that_no_data_set_had_is_doubted() -> None:
    rng = np.random.default_rng(1)
    prior = Prior.fit([data_set(rng, {}, 0.0) for _ in range(8)], "math")
    assert gain(prior, {**features(FORMAT), "has Other": 1.0})[1] > gain(prior, features(FORMAT))[1] + 0.005
