"""Games of TextArena, alone or against a fixed player. arXiv 2504.11442."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from toolwright.registry import load_object
from toolwright.tasks import ENVIRONMENTS, TASKS, InvalidAction, Observation, Outcome, SplitSizes, TaskSet
from toolwright.tasks.textarena_game import TextArenaGame, players_of
from toolwright.tasks.worlds import InvalidPenalty, by_seed
from toolwright.trajectory import Task

Opponent = Callable[[str], str]  # what a player has been shown -> what it says


@ENVIRONMENTS.register("textarena")
class TextArena:
    """`id` and `kwargs` as `textarena.make` takes them. The policy is the `player` of that number; the other
    is `opponent`: "random", which makes any move that the game takes, "policy", the policy itself as it is
    now, or a function, `path.py:name`."""

    def __init__(
        self,
        id: str,
        seed: int = 0,
        players: int = 1,
        player: int = 0,
        opponent: str = "random",
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.game, self.player = TextArenaGame(id, kwargs or {}, players=players, seed=seed), player
        ours: dict[str, Opponent] = {"random": self.game.any_move, "policy": self._own_move}
        self.opponent = ours.get(opponent) or load_object(opponent)
        self.heard = 0  # characters of what the policy's other side was shown

    def use_policy(self, ask: Callable[[list[dict[str, Any]]], str]) -> None:
        self.ask = ask

    def reset(self, task: Task) -> Observation:
        self.other_side = [dict(message) for message in task.prompt]  # the conversation of that side
        return Observation(self._until_our_turn(), self.game.anchor)

    def step(self, action: str) -> Outcome:
        if not self.game.move(action) and self.game.refused:
            raise InvalidAction(self.game.see())
        seen, state = self._until_our_turn(), self.game.state
        if not state.done:
            return Outcome(seen, anchor=self.game.anchor)
        reward, about = float((state.rewards or {}).get(self.player, 0.0)), state.game_info[self.player]
        last = str(about.get("reason") or "The game is over.")
        return Outcome(last, reward, True, self.game.anchor, {"success": reward >= 1})

    def _until_our_turn(self) -> str:
        """Let the opponent play; what the policy is shown then."""
        while not (state := self.game.state).done and state.current_player_id != self.player:
            self.game.see()
            self.game.move(str(self.opponent(self.game.shown[state.current_player_id])))
        return "" if state.done else self.game.see()

    def _own_move(self, shown: str) -> str:
        """The policy's, in a conversation of its own, as the other player has."""
        self.other_side.append({"role": "user", "content": shown[self.heard :].strip()})
        self.heard = len(shown)
        said = self.ask(self.other_side)
        self.other_side.append({"role": "assistant", "content": said})
        return said


@TASKS.register("textarena")
def textarena(
    *,
    sizes: SplitSizes,
    id: str = "TicTacToe-v0",
    kwargs: dict[str, Any] | None = None,
    players: Annotated[int | None, Field(ge=1, le=2)] = None,
    opponent: str = "random",
    held_out_opponent: str | None = None,
    instructions: str = "Answer with your move and nothing else.",
    action_tag: str | None = None,
    invalid_penalty: InvalidPenalty = 0.0,
) -> TaskSet:
    """Games by seed. `players`: None asks the game. Of two, the policy plays either in turn. With
    `opponent=policy` it learns by playing itself. `held_out_opponent` is who it is judged against; None: the
    same, or random in place of itself."""
    opponent = _checked(opponent)
    judge = _checked(held_out_opponent or ("random" if opponent == "policy" else opponent))
    count = players_of(id, kwargs or {}, (1, 2) if players is None else (players,))

    def side(rng: random.Random) -> dict[str, Any]:
        return {"players": 2, "player": rng.randrange(2), "opponent": opponent} if count == 2 else {}

    tasks = by_seed(
        "textarena",
        {"id": id, **({"kwargs": kwargs} if kwargs else {})},
        sizes=sizes,
        instructions=instructions,
        action_tag=action_tag,
        invalid_penalty=invalid_penalty,
        level=side,
    )
    if count == 2 and judge != opponent:
        tasks = replace(tasks, held_out=[_against(judge, task) for task in tasks.held_out])
    return tasks


def _checked(opponent: str) -> str:
    """As it is found from anywhere."""
    if opponent in ("random", "policy"):
        return opponent
    where, _, name = opponent.rpartition(":")
    found = f"{Path(where).resolve()}:{name}" if where.endswith(".py") else opponent
    load_object(found)
    return found


def _against(opponent: str, task: Task) -> Task:
    world = {**task.extra_info["environment"], "opponent": opponent}
    return replace(task, extra_info={**task.extra_info, "environment": world})
