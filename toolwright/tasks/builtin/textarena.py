"""Games of TextArena, alone or against a fixed player. arXiv 2504.11442."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from toolwright.failures import TaskFailure, UserError, extra, nearest
from toolwright.registry import load_object
from toolwright.tasks import TASKS, SplitSizes, TaskSet
from toolwright.tasks.environment import ENVIRONMENTS, InvalidAction, Observation, Outcome
from toolwright.tasks.worlds import InvalidPenalty, by_seed
from toolwright.trajectory import Task

Opponent = Callable[[str], str]  # what a player has been shown -> what it says
BRACKETS = re.compile(r"\[[^\[\]]+\]")  # how moves are written
UNTOLD = [f"[{n}]" for n in range(16)] + [f"[{a} {b}]" for a in range(8) for b in range(8)]
_drawing = threading.Lock()  # games draw from Python's one generator


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
        self.id, self.player, self.rng = id, player, random.Random(seed)
        self.draws = self.rng.getstate()
        ours: dict[str, Opponent] = {"random": self._any_move, "policy": self._own_move}
        self.opponent = ours.get(opponent) or load_object(opponent)
        self.other_side: list[dict[str, Any]] = []  # the conversation of the policy's other side
        self.heard = 0  # characters of what it was shown
        self.shown = dict.fromkeys(range(players), "")  # to each player, from the start
        with self._own_draws():
            self.game = made(id, kwargs or {})
            self.game.reset(num_players=players, seed=seed)
        self.raw = self.game
        while hasattr(self.raw, "env"):
            self.raw = self.raw.env  # shows each player what is new, without the wrappers' summaries

    def use_policy(self, ask: Callable[[list[dict[str, Any]]], str]) -> None:
        self.ask = ask

    def reset(self, task: Task) -> Observation:
        self.other_side = [dict(message) for message in task.prompt]
        return Observation(self._until_our_turn(), self._anchor())

    def step(self, action: str) -> Outcome:
        done = self._move(action)
        if not done and self._refused(self.raw.state):
            raise InvalidAction(self._see())
        seen = self._until_our_turn() if not done else ""
        state = self.raw.state
        if not state.done:
            return Outcome(seen, anchor=self._anchor())
        reward, about = float((state.rewards or {}).get(self.player, 0.0)), state.game_info[self.player]
        last = str(about.get("reason") or "The game is over.")
        return Outcome(last, reward, True, self._anchor(), {"success": reward >= 1})

    def _until_our_turn(self) -> str:
        """Let the opponent play; what the policy is shown then."""
        while not self.raw.state.done and self.raw.state.current_player_id != self.player:
            self._see()
            self._move(str(self.opponent(self.shown[self.raw.state.current_player_id])))
        return "" if self.raw.state.done else self._see()

    def _see(self) -> str:
        """Return what is new to the player whose turn it is. It knows what it said itself."""
        with self._own_draws():
            player, told = self.raw.get_observation()
        names = self.raw.state.role_mapping
        lines = [f"[{names.get(who, who)}] {text}" for who, text, _ in told if who != player]
        self.shown[player] += "".join(f"\n{line}" for line in lines)
        return "\n".join(lines)

    def _move(self, action: str, game: Any = None) -> bool:
        with self._own_draws():
            return bool((game or self.game).step(action)[0])

    def _any_move(self, shown: str) -> str:
        """A move that the game takes: of those it listed last, of all it ever named, or by number."""
        for pool in (shown.rpartition("\n[GAME]")[2], shown, " ".join(UNTOLD)):
            moves = sorted(set(BRACKETS.findall(pool)))
            for move in self.rng.sample(moves, len(moves)):
                tried, draws = copy.deepcopy(self.game), self.draws
                player, state = self.raw.state.current_player_id, tried.state
                with contextlib.suppress(Exception):
                    self._move(move, tried)
                    if not (self._refused(state) or state.game_info[player].get("invalid_move")):
                        self.draws = draws
                        return move
                self.draws = draws
        raise TaskFailure(f"no random move found in {self.id}: set task.params.opponent=path.py:function")

    def _own_move(self, shown: str) -> str:
        """The policy's, in a conversation of its own, as the other player has."""
        self.other_side.append({"role": "user", "content": shown[self.heard :].strip()})
        self.heard = len(shown)
        said = self.ask(self.other_side)
        self.other_side.append({"role": "assistant", "content": said})
        return said

    @staticmethod
    def _refused(state: Any) -> bool:
        """True if the last move was none; its player has another try."""
        return bool(getattr(state, "error_count", 0))

    def _anchor(self) -> str:
        state = json.dumps(self.raw.state.game_state, sort_keys=True, default=str)
        return hashlib.blake2b(state.encode(), digest_size=16).hexdigest()

    @contextlib.contextmanager
    def _own_draws(self) -> Iterator[None]:
        """Give each game its own random state, as if it ran alone."""
        with _drawing:
            others = random.getstate()
            random.setstate(self.draws)
            try:
                yield
            finally:
                self.draws = random.getstate()
                random.setstate(others)


def made(id: str, kwargs: dict[str, Any]) -> Any:
    # Some games tell what they could not download.
    with extra("textarena", needed_by="task 'textarena'"), contextlib.redirect_stderr(io.StringIO()):
        import textarena
        from textarena.envs.registration import ENV_REGISTRY
    if id not in ENV_REGISTRY:
        raise UserError(f"TextArena has no game {id!r}; {nearest(id, ENV_REGISTRY)}")
    return textarena.make(id, **kwargs)


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
    count = _starts(id, kwargs or {}, (1, 2) if players is None else (players,))

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


def _starts(id: str, kwargs: dict[str, Any], counts: tuple[int, ...]) -> int:
    """The first of these numbers of players that the game starts with."""
    why = ""
    for players in counts:
        try:
            TextArena(id, players=players, kwargs=kwargs)
            return players
        except UserError:
            raise
        except Exception as error:
            why = why or " ".join(f"{type(error).__name__}: {error}".split())[:300]
    raise UserError(f"TextArena's {id} does not start with {' or '.join(map(str, counts))} players: {why}")
