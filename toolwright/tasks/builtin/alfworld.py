"""ALFWorld's chores in a household, played by its own game files. arXiv 2010.03768."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import string
from pathlib import Path
from typing import Any, Literal

from toolwright.failures import UserError
from toolwright.tasks import TASKS, TaskSet
from toolwright.tasks.environment import ENVIRONMENTS, Observation, Outcome
from toolwright.tasks.worlds import InvalidPenalty, asks_for
from toolwright.trajectory import Task

FOLDER = "json_2.1.1"  # where `alfworld-download` puts its games
UNPLAYABLE = ("movable", "Sliced")  # chores that ALFWorld leaves out


@ENVIRONMENTS.register("alfworld")
class Household:
    """One game, a file `game.tw-pddl`. Any words may be said to it; what it does not know changes nothing."""

    def __init__(self, game: str) -> None:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

        infos = textworld.EnvInfos(won=True, admissible_commands=True)
        self.game: Any = textworld.start(game, infos, wrappers=[AlfredDemangler(shuffle=False)])

    def reset(self, task: Task) -> Observation:
        state = self.game.reset()
        return Observation(self._shown(state), state.feedback)

    def step(self, action: str) -> Outcome:
        state, _, done = self.game.step(" ".join(action.lower().split()))
        won = bool(state.won)
        return Outcome(self._shown(state), float(won), bool(done or won), state.feedback, {"success": won})

    def close(self) -> None:
        self.game.close()

    def _shown(self, state: Any) -> str:
        self.actions = [command for command in state.admissible_commands if command != "help"]
        return f"{state.feedback.strip()}\nPossible: {', '.join(self.actions)}."


def data_folder(data: str | None = None) -> Path:
    """Where the games are: as said, or where ALFWorld itself looks for them."""
    return Path(data or os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld").expanduser() / FOLDER


@TASKS.register("alfworld")
def alfworld(
    *,
    seed: int,
    train_size: int | None,
    held_out_size: int,
    data: str | None = None,
    rooms: Literal["seen", "unseen"] = "seen",
    instructions: str = "Do the chore. Answer with one of the possible actions and nothing else.",
    action_tag: str | None = None,
    invalid_penalty: InvalidPenalty = 0.0,
) -> TaskSet:
    """`data`: the folder of `alfworld-download`; `rooms` of held-out games: seen in training, or not."""
    if importlib.util.find_spec("alfworld") is None:
        raise UserError("task 'alfworld' needs ALFWorld: pip install 'toolwright[alfworld]'")
    own: dict[str, Any] = {"action_tag": action_tag} if action_tag else {}
    own |= {"invalid_penalty": invalid_penalty} if invalid_penalty else {}

    def tasks(split: str, count: int | None) -> list[Task]:
        games = _games(data_folder(data) / split)
        games = random.Random(f"{split} {seed}").sample(games, min(count or len(games), len(games)))
        return [task(split, game) for game in games]

    def task(split: str, game: Path) -> Task:
        return Task(
            id=f"alfworld:{split}/{game.parent.parent.name}/{game.parent.name}",
            prompt=[{"role": "system", "content": instructions + asks_for(action_tag)}],
            data_source="alfworld",
            extra_info={"environment": {"name": "alfworld", "game": str(game), **own}},
        )

    return TaskSet(
        train=tasks("train", train_size),
        held_out=tasks(f"valid_{rooms}", held_out_size),
        scorer="environment",
        alphabet=string.printable,
    )


def _games(folder: Path) -> list[Path]:
    """Games that can be won, as ALFWorld itself chooses them."""
    found = [file for file in sorted(folder.rglob("game.tw-pddl")) if _playable(file)]
    if not found:
        raise UserError(f"task 'alfworld': no games in {folder}; `alfworld-download` brings them")
    return found


def _playable(file: Path) -> bool:
    if any(word in str(file.parent) for word in UNPLAYABLE):
        return False
    return bool(json.loads(file.read_text(encoding="utf-8")).get("solvable"))
