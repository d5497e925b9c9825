"""ALFWorld's chores in a household, played by its own game files. arXiv 2010.03768."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import random
import string
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from toolwright.failures import UserError
from toolwright.tasks import TASKS, SplitSizes, TaskSet
from toolwright.tasks.environment import ENVIRONMENTS, Observation, Outcome
from toolwright.tasks.worlds import InvalidPenalty, asks_for, digest, world_task
from toolwright.trajectory import Task

FOLDER = "json_2.1.1"  # where `alfworld-download` puts its games
UNPLAYABLE = ("movable", "Sliced")  # chores that ALFWorld leaves out

# TextWorld's parsers, and the translator of its planner, keep their state in places that all games share.
_playing = threading.Lock()
# Each engine loads a copy of the planner's library. Unloading it crashes the process at its exit, so later
# attempts take the engine over.
_idle: list[Any] = []


@ENVIRONMENTS.register("alfworld")
class Household:
    """A game, read from a file `game.tw-pddl`. Any words may be said to it; what it does not know changes
    nothing."""

    def __init__(self, game: str) -> None:
        with _alone():
            self.engine = _idle.pop() if _idle else _engine()
            self.engine.load(game)

    def reset(self, task: Task) -> Observation:
        with _alone():
            state = self.engine.reset()
        return Observation(self._shown(state), _anchor(state))

    def step(self, action: str) -> Outcome:
        with _alone():
            state, _, done = self.engine.step(" ".join(action.lower().split()))
        return Outcome(
            self._shown(state), float(state.won), bool(done), _anchor(state), {"success": bool(state.won)}
        )

    def close(self) -> None:
        _idle.append(self.engine)

    def _shown(self, state: Any) -> str:
        self.actions = [command for command in state.admissible_commands if command != "help"]
        return f"{state.feedback.strip()}\nPossible: {', '.join(self.actions)}."


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let one game run at a time, and keep `sys.argv`, which the translator sets."""
    with _playing:
        argv = sys.argv
        try:
            yield
        finally:
            sys.argv = argv


@functools.cache
def _translate_once() -> None:
    """Keep a game's translation, most of its start: TextWorld translates anew at each load and reset."""
    import fast_downward

    fast_downward.pddl2sas = functools.lru_cache(maxsize=64)(fast_downward.pddl2sas)


def _engine() -> Any:
    """Make an engine. It plays one game file after another."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs import PddlEnv

    _translate_once()
    infos = textworld.EnvInfos(won=True, admissible_commands=True, facts=True)
    return AlfredDemangler(PddlEnv(infos), shuffle=False)


def _anchor(state: Any) -> str:
    """Name the state by what is true in it, but for what was looked at. It is a digest, as facts are many."""
    facts = sorted(str(fact) for fact in state.facts if not fact.name.startswith(("not_", "checked")))
    return digest("; ".join(facts))


def data_folder(data: str | None = None) -> Path:
    """Return the folder of the games: as said, or where ALFWorld itself looks for them."""
    return Path(data or os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld").expanduser() / FOLDER


@TASKS.register("alfworld")
def alfworld(
    *,
    sizes: SplitSizes,
    data: str | None = None,
    rooms: Literal["seen", "unseen"] = "seen",
    instructions: str = "Do the chore. Answer with one of the possible actions and nothing else.",
    action_tag: str | None = None,
    invalid_penalty: InvalidPenalty = 0.0,
) -> TaskSet:
    """`data`: the folder of `alfworld-download`; `rooms` of held-out games: seen in training, or not."""
    if importlib.util.find_spec("alfworld") is None:
        raise UserError("task 'alfworld' needs ALFWorld: pip install 'toolwright[alfworld]'")
    rules = {"action_tag": action_tag or None, "invalid_penalty": invalid_penalty or None}
    prompt = instructions + asks_for(action_tag)

    def tasks(split: str, count: int | None) -> list[Task]:
        games = _games(data_folder(data) / split)
        games = random.Random(f"{split} {sizes.seed}").sample(games, min(count or len(games), len(games)))
        return [task(split, game) for game in games]

    def task(split: str, game: Path) -> Task:
        id = f"alfworld:{split}/{game.parent.parent.name}/{game.parent.name}"
        return world_task("alfworld", id, {"game": str(game), **rules}, prompt=prompt)

    return TaskSet(
        train=tasks("train", sizes.train),
        held_out=tasks(f"valid_{rooms}", sizes.held_out),
        scorer="environment",
        alphabet=string.printable,
    )


def _games(folder: Path) -> list[Path]:
    """Games that can be won, as ALFWorld itself chooses them."""
    found = [file for file in sorted(folder.rglob("game.tw-pddl")) if _playable(file)]
    if not found:
        raise UserError(f"task 'alfworld': no games in {folder}; `alfworld-download` downloads them")
    return found


def _playable(file: Path) -> bool:
    if any(word in str(file.parent) for word in UNPLAYABLE):
        return False
    return bool(json.loads(file.read_text(encoding="utf-8")).get("solvable"))
