"""Where roles go by default: one process' worth of cores, one GPU, eight, many nodes."""

from __future__ import annotations

from math import ceil

from toolwright.config.places import Placement, RanksConfig, WorkersConfig
from toolwright.runtime.placement import ActorSpec, PlacementPlan, fitting, plan

PPO = ["policy", "reference", "critic", "reward", "rollout"]


def names(posts: list[ActorSpec]) -> list[str]:
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


def filled(nodes: int, made: PlacementPlan) -> list[tuple[int, int]]:
    """Of each node of eight GPUs: those that ranks have, packed, and the rollout workers on the others."""
    ranks, found = sum(post.gpus for post in made.fixed), []
    for _ in range(nodes):
        here = min(8, ceil(ranks))
        ranks -= min(8, ranks)
        assert made.a_node is not None
        found.append((here, fitting(made.a_node, {"CPU": 32.0, "GPU": 8.0 - here})))
    return found


def test_gpus_of_one_node_and_of_two() -> None:
    """Every GPU is given out once: a whole one to each rank, or shared by those that wait for each other."""
    node = {"CPU": 64.0, "GPU": 8.0}
    for nodes, ranks, wanted in [
        (1, 1, [(1, 7)]),
        (1, 4, [(4, 4)]),
        (2, 1, [(1, 7), (0, 8)]),
        (2, 8, [(8, 0), (0, 8)]),
        (2, 12, [(8, 0), (4, 4)]),
    ]:
        made = plan(Placement(policy=RanksConfig(ranks=ranks)), PPO, [node] * nodes)
        assert not made.colocated
        learns = [post for post in made.fixed if post.name != "reward"]
        if ranks == 1:
            assert [post.gpus for post in learns] == [0.33, 0.33, 0.33]
        else:
            assert [post.gpus for post in learns] == [1.0] * ranks
            assert names(made.fixed) == [*(f"policy-{i}" for i in range(ranks)), "reward"]
        assert next(post for post in made.fixed if post.name == "reward").bundle == {"CPU": 1.0}
        assert filled(nodes, made) == wanted


def test_policy_reference_and_critic_share_one_gpu() -> None:
    made = plan(Placement(), PPO, [{"CPU": 8.0, "GPU": 1.0}])
    assert {post.name: post.gpus for post in made.fixed} == {
        "policy": 0.33,
        "reference": 0.33,
        "critic": 0.33,
        "reward": 0.0,
    }


def test_one_gpu_and_two_ranks_are_more_than_there_is() -> None:
    """Ray is asked for two, so that the run says what it lacks and does not start on half of it."""
    made = plan(Placement(policy=RanksConfig(ranks=2)), PPO, [{"CPU": 8.0, "GPU": 1.0}])
    assert [post.gpus for post in made.fixed] == [1.0, 1.0, 0.0]
    assert not made.colocated


def test_stated_placement_wins() -> None:
    said = Placement(
        policy=RanksConfig(ranks=2, gpus=1, labels={"gpu": "h200"}),
        rollout=WorkersConfig(workers=3, cpus=2, gpus=0.5),
        colocate="no",
    )
    made = plan(said, ["policy", "reference", "reward", "rollout"], [{"CPU": 32.0, "GPU": 8.0}])
    assert names(made.fixed) == ["policy-0", "policy-1", "reward"]
    assert made.fixed[0].labels == {"gpu": "h200"}
    assert names(made.workers) == ["rollout-0", "rollout-1", "rollout-2"]
    assert made.workers[0].bundle == {"CPU": 2.0, "GPU": 0.5}
    assert made.a_node is None
