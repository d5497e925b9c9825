"""Finds room for actors on the nodes of a Ray cluster, at the start and on nodes that join later."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import ray

from toolwright.failures import UserError
from toolwright.runtime import placement, session
from toolwright.runtime.placement import ActorPlace, ActorSpec

if TYPE_CHECKING:
    from toolwright.config import schema

LOOK_AGAIN_S = 0.2


class ActorPlacer:
    """`roles` are the names of the roles that the run needs. `reward_gpus` is passed to `placement.plan`."""

    def __init__(
        self, run: str, config: schema.Runtime, roles: Sequence[str], *, reward_gpus: float | None = 0.0
    ) -> None:
        self.run, self.config, self.roles, self.reward_gpus = run, config, roles, reward_gpus
        self._groups: list[Any] = []
        self._workers = 0  # given out on nodes so far

    def place(self) -> list[tuple[ActorSpec, ActorPlace]]:
        """Reserve room for every actor of the plan. Starts over if a node leaves meanwhile."""
        until = time.monotonic() + self.config.start_timeout_s
        while not self._reserve(until):
            pass
        placed = [
            (spec, ActorPlace(group=group, bundle=index))
            for specs, group in zip(self._spec_groups, self._groups, strict=True)
            for index, spec in enumerate(specs)
        ]
        return [*placed, *self._first_workers()]

    @property
    def _spec_groups(self) -> list[list[ActorSpec]]:
        return [specs for specs in (self.plan.fixed, self.plan.workers) if specs]

    def _reserve(self, until: float) -> bool:
        alive = session.alive_nodes()
        nodes = [dict(node["Resources"]) for node in ray.nodes() if node["NodeID"] in alive]
        self.plan = placement.plan(self.config.placement, self.roles, nodes, reward_gpus=self.reward_gpus)
        for specs in self._spec_groups:
            self._groups.append(
                ray.util.placement_group(
                    **placement.bundles(specs),
                    strategy=self.config.placement.strategy.upper(),
                    name=f"toolwright/{self.run}/{specs[0].name}",
                )
            )
        for specs, group in zip(self._spec_groups, self._groups, strict=True):
            while not group.wait(LOOK_AGAIN_S):
                if session.alive_nodes() != alive:  # a node that dies is counted for some seconds more
                    self.release()
                    return False
                if time.monotonic() > until:
                    self._no_room(specs)
        return True

    def _no_room(self, specs: Sequence[ActorSpec]) -> NoReturn:
        listed = ", ".join(f"{spec.name} {spec.bundle}" for spec in specs)
        raise UserError(
            f"the cluster has no room for {listed} within "
            f"runtime.start_timeout_s={self.config.start_timeout_s:g} s; it has "
            f"{ray.available_resources()} free: lower runtime.placement, or add nodes"
        )

    def _first_workers(self) -> list[tuple[ActorSpec, ActorPlace]]:
        """Wait for the first rollout workers. Without one there is no run, and a previous run may not have
        freed its room yet."""
        until = time.monotonic() + self.config.start_timeout_s
        while self.plan.a_node is not None:
            if found := list(self.new_workers(set())):
                return found
            if time.monotonic() > until:
                raise UserError(
                    f"no node has room for a rollout worker of {self.plan.a_node.bundle} within "
                    f"runtime.start_timeout_s={self.config.start_timeout_s:g} s; lower "
                    "runtime.placement.rollout, or add nodes"
                )
            time.sleep(LOOK_AGAIN_S)
        return []

    def new_workers(self, used_nodes: set[str | None]) -> Iterator[tuple[ActorSpec, ActorPlace]]:
        """Place new rollout workers: without a fixed number, every other node gets as many as fit on it."""
        spec = self.plan.a_node
        if spec is None:
            return
        for node, free in session.free_by_node(spec.labels).items():
            if node in used_nodes:
                continue
            for _ in range(placement.fitting(spec, free)):
                yield placement.numbered(spec, self._workers), ActorPlace(node=node)
                self._workers += 1

    def release(self) -> None:
        """Release all reserved room."""
        for group in self._groups:
            ray.util.remove_placement_group(group)
        self._groups.clear()
