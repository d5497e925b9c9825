"""A game for two of a user's own: who plays the other side, and what it draws."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from toolwright.config import schema
from toolwright.tasks import Outcome, load
from toolwright.tasks.game import Game, game_tasks
from toolwright.trajectory import Task, Trajectory

from .functions import attempted


@dataclass(kw_only=True)
class Nim(Game):
    """Take one to three of a heap; who takes the last wins. The heap is drawn from Python's generator."""

    def start(self) -> None:
        if self.players != 2:
            raise ValueError("it is a game for two")
        self.heap, self.to_move, self.taken = random.randrange(9, 13), 0, 0

    @property
    def turn(self) -> int | None:
        return self.to_move if self.heap else None

    @property
    def anchor(self) -> str:
        return str(self.heap)

    def see(self) -> str:
        return f"took {self.taken}, left {self.heap}"

    def move(self, action: str) -> bool:
        if action not in ("1", "2", "3") or int(action) > self.heap:
            return False
        self.taken, self.to_move = int(action), 1 - self.to_move
        self.heap -= self.taken
        return True

    def moves(self, shown: str) -> Iterable[Sequence[str]]:
        return (["4", "3"], ["1"])

    def end(self, player: int) -> Outcome:
        won = self.to_move != player
        return Outcome("over", 1.0 if won else -1.0, info={"success": won})


nim = game_tasks(f"{__name__}:Nim", Nim, instructions="Take the last one.")


def takes_two(shown: str) -> str:
    return "2" if not shown.endswith("left 1") else "1"


def attempt(*turns: str, **settings: Any) -> Trajectory:
    world = {"name": f"{__name__}:Nim", "players": 2, **settings}
    (made,) = attempted([Task("t", [], extra_info={"environment": world})], lambda _: turns)
    assert made.failure is None
    return made


def test_a_random_player_makes_only_moves_that_the_game_takes() -> None:
    made = attempt("1", seed=3)
    shown = [segment.text for segment in made.segments if segment.source == "environment"]
    assert shown[-1] == "over"
    assert set(re.findall(r"took (\d)", "".join(shown))) <= {"3", "1"}
    assert made.reward in (1.0, -1.0)


def test_draws_are_the_games_own_and_the_same_for_a_seed() -> None:
    heaps = []
    for _ in range(2):
        before = random.getstate()
        heaps.append([Nim(seed=seed, players=2).heap for seed in range(8)])
        assert random.getstate() == before
        random.random()
    assert heaps[0] == heaps[1]
    assert len(set(heaps[0])) > 1


def test_the_other_player_may_be_a_function() -> None:
    made = attempt("1", player=1, opponent=f"{__name__}:takes_two")
    assert "took 2" in made.segments[0].text


def test_tasks_are_games_on_either_side_and_held_out_ones_are_against_another() -> None:
    config = schema.TaskConfig(
        name=f"{__name__}:nim", params={"opponent": "policy"}, train_size=8, held_out_size=4
    )
    found = load(config, seed=0)
    worlds = [task.extra_info["environment"] for task in found.train]
    assert {(world["player"], world["opponent"]) for world in worlds} == {(0, "policy"), (1, "policy")}
    assert {task.extra_info["environment"]["opponent"] for task in found.held_out} == {"random"}
    assert [t.failure for t in attempted(found.train, lambda _: ["1"])] == [None] * 8


def test_a_move_that_is_none_is_reported_and_costs_a_turn_alone() -> None:
    made = attempt("9", "1", seed=3)
    assert made.counts["format_faults"] == 1
    assert made.steps[0].anchor == made.steps[1].anchor
