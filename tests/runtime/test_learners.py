"""Ranks asked as one: whoever of them is lost, all are ended, named, and begun again together."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import ray

from toolwright.config.schema import Runtime
from toolwright.failures import UserError
from toolwright.runtime.actors import ActorSlot
from toolwright.runtime.learners import RayLearners
from toolwright.runtime.placement import ActorPlace, ActorSpec
from toolwright.runtime.roles import LearnerLost

pytestmark = pytest.mark.xdist_group("ray deaths")


class Group:
    """Two ranks on the tests' cluster, and what was said of those that were lost."""

    def __init__(self) -> None:
        node = ray.get_runtime_context().get_node_id()
        own: dict[str, Any] = {"builder": "tests.runtime.pretenders:build", "role_config": None, "moved": {}}
        specs = [ActorSpec(f"policy-{i}", ("policy",), cpus=0.1) for i in range(2)]
        place = ActorPlace(node=node)
        self.slots = [ActorSlot("pretend", spec, place, Runtime(), **own) for spec in specs]
        self.named: list[str] = []
        self.threads = ThreadPoolExecutor(4)
        self.learners = RayLearners(
            self.slots,
            patience_s=60,
            replace=self._replace,
            resample=lambda table: None,
            threads=self.threads,
        )
        self.learners.renew()

    def _replace(self, slot: ActorSlot, incarnation: int, what: str) -> None:
        if slot.give_up(incarnation):
            self.named.append(f"{slot.name} {what}")
            slot.end()

    def assert_lost(self, match: str, method: str, **how: Any) -> None:
        self.named.clear()
        with pytest.raises(LearnerLost, match=match):
            self.learners.ask(method, **how)
        assert not any(slot.ready for slot in self.slots)
        self.learners.renew()

    def close(self) -> None:
        for slot in self.slots:
            slot.retire()
        self.threads.shutdown()


@pytest.fixture(scope="module")
def group(cluster: Any) -> Iterator[Group]:
    made = Group()
    yield made
    made.close()


def test_all_ranks_are_asked_and_the_first_one_answers(group: Group) -> None:
    index, count, master, pid = group.learners.ask("who")
    assert (index, count) == (0, 2)
    assert master.rpartition(":")[2].isdigit()
    other = group.slots[1].ask("policy", "who")
    assert other[:3] == [1, 2, master]
    assert other[3] != pid
    answer, rest = group.learners.ask("double", 4, returns=2)
    assert (answer, ray.get(rest)) == (8, 12)


def test_a_rank_that_dies_takes_the_others_along_and_is_the_one_named(group: Group) -> None:
    before = group.learners.ask("who")
    group.assert_lost("the policy was lost in update", "update")
    assert [line.split()[:2] for line in group.named] == [["policy-1", "died;"]]
    after = group.learners.ask("who")
    assert after[:2] == [0, 2]
    assert after[2:] != before[2:]


def test_no_answer_within_its_limit_is_a_loss(group: Group) -> None:
    group.assert_lost("has not answered hang within 1 s", "hang", limit_s=1)
    assert [line.split()[0] for line in group.named] == ["policy-0", "policy-1"]


def test_a_critic_that_is_gone_is_a_loss(group: Group) -> None:
    group.assert_lost("cannot continue with ask_critic: critic was lost", "ask_critic")
    assert not group.named


def test_the_error_of_a_rank_is_raised(group: Group) -> None:
    with pytest.raises(UserError, match="no room on the disk"):
        group.learners.ask("refuse")
    with pytest.raises(ray.exceptions.RayTaskError, match="a bug"):
        group.learners.ask("stumble")
    assert group.learners.ask("who")[:2] == [0, 2]
