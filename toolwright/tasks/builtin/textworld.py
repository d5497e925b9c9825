"""TextWorld's treasure hunts: rooms, doors and containers, and one thing to be found. arXiv 1806.11532."""

from __future__ import annotations

import functools
import tempfile
import threading
from typing import Annotated, Any

from pydantic import Field

from toolwright.failures import extra
from toolwright.tasks.environment import ENVIRONMENTS, InvalidAction, Observation, Outcome
from toolwright.tasks.worlds import register_worlds
from toolwright.trajectory import Task

SAYS_NOTHING = ("look", "inventory", "examine")  # what these tell is shown anyway
_making = threading.Lock()  # TextWorld keeps its rules in places that all games share


@ENVIRONMENTS.register("textworld")
class TreasureHunt:
    """`level`: TextWorld's, of which 1 to 20 are made within a second; from 11 on there are closed boxes."""

    def __init__(self, level: Annotated[int, Field(ge=1, le=20)] = 5, seed: int = 0) -> None:
        with _making:
            self.game = _game(level, seed).copy()

    def reset(self, task: Task) -> Observation:
        treasure = self._see(self.game.reset()).policy_commands[-1].partition(" from ")[0]
        return Observation(f"You win as soon as you {treasure}.\n{self.shown}", self.anchor)

    def step(self, action: str) -> Outcome:
        command = " ".join(action.lower().split())
        known = {one.lower(): one for one in self.actions}
        if command not in known:
            raise InvalidAction(f"You cannot {command[:40]!r} here.\n{self.shown}")
        state = self._see(self.game.step(known[command])[0])
        won, over = bool(state.won), bool(state.won or state.lost)
        return Outcome(self.shown, float(won), over, self.anchor, {"success": won})

    def solution(self) -> list[str]:
        return list(self.game.state.policy_commands)

    def _see(self, state: Any) -> Any:
        self.actions = [one for one in state.admissible_commands if one.split()[0] not in SAYS_NOTHING]
        self.anchor = "; ".join(sorted(map(str, state.facts)))
        room = next(fact.names[1] for fact in state.facts if fact.name == "at" and fact.names[0] == "P")
        carried = sorted(fact.names[0] for fact in state.facts if fact.name == "in" and fact.names[1] == "I")
        shown = (room, ", ".join(carried) or "nothing", ", ".join(self.actions))
        self.shown = "Room: {}. Carried: {}. Possible: {}.".format(*shown)
        return state


@functools.lru_cache(maxsize=1024)
def _game(level: int, seed: int) -> Any:
    with extra("textworld", needed_by="task 'textworld'"):
        import textworld
        from textworld.challenges.tw_treasure_hunter.treasure_hunter import make
    infos = textworld.EnvInfos(
        facts=True, admissible_commands=True, won=True, lost=True, policy_commands=True
    )
    options = textworld.GameOptions()
    options.seeds = seed
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        make({"level": level}, options).save(file.name)
        return textworld.start(file.name, infos)


register_worlds(
    "textworld",
    TreasureHunt,
    instructions="Find the treasure. Answer with one of the possible actions and nothing else.",
)
