"""Turns the placement settings and the resources of a cluster into the bundles that Ray reserves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolwright.config.places import Placement

ROOM = 0.9  # of the processors; the rest is the driver's and Ray's own


@dataclass(frozen=True)
class ActorSpec:
    """An actor to start: its roles and the resources it reserves."""

    name: str
    roles: tuple[str, ...]
    cpus: float
    gpus: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def bundle(self) -> dict[str, float]:
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}


@dataclass(frozen=True)
class ActorPlace:
    """The place of an actor: a bundle of a placement group, or free resources of a node."""

    group: Any = None
    bundle: int = 0
    node: str | None = None


@dataclass(frozen=True)
class PlacementPlan:
    """`fixed` actors stay where they are. If `a_node` is given, every node with enough room gets rollout
    workers."""

    fixed: list[ActorSpec]
    workers: list[ActorSpec]
    a_node: ActorSpec | None

    @property
    def colocated(self) -> bool:
        return any({"policy", "rollout"} <= set(spec.roles) for spec in self.fixed)


def plan(
    config: Placement,
    roles: Sequence[str],
    nodes: Sequence[Mapping[str, float]],
    *,
    reward_gpus: float | None = 0.0,
) -> PlacementPlan:
    """`nodes`: the resources of each. `reward_gpus`: of a reward that holds a model; None: as below. The
    defaults:

    - no GPU: every role an actor, one rollout worker a node, processors shared where they are few;
    - one GPU: policy and engine in one process over the same weights; reference and critic beside them;
    - several: the policy's ranks one each, shared with reference and critic; a rollout worker on each other;
    - more ranks than one: reference and critic in the same processes, sharded as the policy is;
    - a reward model: beside the policy of one rank, else on a GPU that the ranks leave.
    """
    gpus = sum(node.get("GPU", 0.0) for node in nodes)
    ranks = config.policy.layout.size if "policy" in roles else 0
    joined = config.colocate == "yes" or (config.colocate == "auto" and gpus == 1 and ranks == 1)
    together = joined and {"policy", "rollout"} <= set(roles)
    # Several ranks hold a part of reference and critic each, beside their part of the policy.
    asked = ("reference", "teacher", "critic", "process_reward")
    frozen = [name for name in asked if name in roles and ranks == 1]
    own_gpus = config.policy.gpus if config.policy.gpus is not None else min(gpus, 1.0)
    # Reference and critic live on the policy's GPU: they work while it waits for them.
    beside = reward_gpus is None and ranks == 1 and own_gpus <= 1
    share = own_gpus / (1 + len(frozen) + beside) if own_gpus <= 1 else own_gpus
    share = floor(share * 100) / 100
    if reward_gpus is None:
        reward_gpus = share if beside else min(1.0, max(0.0, gpus - ranks * own_gpus))
    workers = 0 if together else config.rollout.workers or max(1, len(nodes))
    count = ranks + len(frozen) + 1 + workers
    cpu = _processors(nodes, count)
    policy_cpu, rollout_cpu = config.policy.cpus or cpu, config.rollout.cpus or cpu
    fixed = []
    for rank in range(ranks):
        held = ("policy", "rollout") if together else ("policy",)
        name = "policy" if ranks == 1 else f"policy-{rank}"
        fixed.append(ActorSpec(name, held, policy_cpu, share, config.policy.labels))
    fixed += [ActorSpec(name, (name,), policy_cpu, share, config.policy.labels) for name in frozen]
    fixed.append(ActorSpec("reward", ("reward",), cpu, reward_gpus))
    if together or "rollout" not in roles:
        return PlacementPlan(fixed, [], None)
    worker_gpus = config.rollout.gpus
    if worker_gpus is None:
        worker_gpus = 1.0 if gpus > 1 else 0.0
    worker = ActorSpec("rollout", ("rollout",), rollout_cpu, worker_gpus, config.rollout.labels)
    if config.rollout.workers is None:
        return PlacementPlan(fixed, [], worker)
    return PlacementPlan(fixed, [numbered(worker, i) for i in range(config.rollout.workers)], None)


def fitting(spec: ActorSpec, free: Mapping[str, float]) -> int:
    """Count the rollout workers that fit into a node's free resources: one for each GPU, or a single one."""
    if spec.gpus:
        return floor(free.get("GPU", 0.0) / spec.gpus + 1e-6)
    return int(free.get("CPU", 0.0) + 1e-6 >= spec.cpus)


def numbered(spec: ActorSpec, number: int) -> ActorSpec:
    return replace(spec, name=f"rollout-{number}")


def _processors(nodes: Sequence[Mapping[str, float]], actors: int) -> float:
    """Return a whole processor for each actor if there are enough, else an equal share."""
    there = sum(node.get("CPU", 0.0) for node in nodes)
    least = min((node.get("CPU", 0.0) for node in nodes), default=1.0)
    return max(0.01, min(1.0, floor(ROOM * there / actors * 100) / 100, floor(ROOM * least * 100) / 100))


def bundles(specs: Sequence[ActorSpec]) -> dict[str, Any]:
    """Return the arguments of Ray's placement group for these actors."""
    arguments: dict[str, Any] = {"bundles": [spec.bundle for spec in specs]}
    if any(spec.labels for spec in specs):
        arguments["bundle_label_selector"] = [dict(spec.labels) for spec in specs]
    return arguments
