"""Where roles go by default: one process' worth of cores, one GPU, eight, many nodes."""

from __future__ import annotations

from toolwright.config.schema import Placement, Ranks, Workers
from toolwright.runtime.placement import Post, fitting, plan

PPO = ["policy", "reference", "critic", "reward", "rollout"]


def names(posts: list[Post]) -> list[str]:
    return [post.name for post in posts]


def test_five_actors_fit_on_two_cores() -> None:
    made = plan(Placement(), PPO, [{"CPU": 2.0}])
    assert names(made.fixed) == ["policy", "reference", "critic", "reward"]
    assert made.a_node is not None
    assert sum(post.cpus for post in made.fixed) + made.a_node.cpus <= 2
    assert not made.colocated


def test_one_gpu_holds_policy_and_engine_in_one_process() -> None:
    made = plan(Placement(), PPO, [{"CPU": 16.0, "GPU": 1.0}])
    assert made.colocated
    assert made.fixed[0].roles == ("policy", "rollout")
    assert made.a_node is None
    assert sum(post.gpus for post in made.fixed) <= 1


def test_eight_gpus_leave_seven_to_rollouts() -> None:
    made = plan(Placement(), PPO, [{"CPU": 64.0, "GPU": 8.0}])
    assert not made.colocated
    assert sum(post.gpus for post in made.fixed) <= 1
    assert made.a_node is not None
    taken = sum(post.gpus for post in made.fixed)
    assert fitting(made.a_node, {"CPU": 60.0, "GPU": 8 - taken}) == 7


def test_every_node_of_many_gets_a_worker() -> None:
    made = plan(Placement(), ["policy", "reward", "rollout"], [{"CPU": 8.0}] * 4)
    assert made.a_node is not None
    assert [fitting(made.a_node, {"CPU": free}) for free in (8.0, 0.5)] == [1, 0]
    assert made.fixed[0].cpus == 1


def test_what_is_said_wins() -> None:
    said = Placement(
        policy=Ranks(ranks=2, gpus=1, labels={"gpu": "h200"}),
        rollout=Workers(workers=3, cpus=2, gpus=0.5),
        colocate="no",
    )
    made = plan(said, ["policy", "reference", "reward", "rollout"], [{"CPU": 32.0, "GPU": 8.0}])
    assert names(made.fixed) == ["policy-0", "policy-1", "reference", "reward"]
    assert made.fixed[0].labels == {"gpu": "h200"}
    assert names(made.workers) == ["rollout-0", "rollout-1", "rollout-2"]
    assert made.workers[0].bundle == {"CPU": 2.0, "GPU": 0.5}
    assert made.a_node is None
