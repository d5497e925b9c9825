"""A game of TextArena with random draws of its own: what each player is shown, and which moves it takes."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import re
import threading
from collections.abc import Iterator
from typing import Any

from toolwright.failures import TaskFailure, UserError, extra, nearest
from toolwright.tasks.worlds import digest

BRACKETS = re.compile(r"\[[^\[\]]+\]")  # how moves are written
UNTOLD = [f"[{n}]" for n in range(16)] + [f"[{a} {b}]" for a in range(8) for b in range(8)]
_drawing = threading.Lock()  # games draw from Python's one generator


class TextArenaGame:
    """`id` and `kwargs` as `textarena.make` takes them."""

    def __init__(self, id: str, kwargs: dict[str, Any], *, players: int, seed: int = 0) -> None:
        self.id, self.rng = id, random.Random(seed)
        self.draws = self.rng.getstate()
        self.shown = dict.fromkeys(range(players), "")  # to each player, from the start
        with self._own_draws():
            self.game = _made(id, kwargs)
            self.game.reset(num_players=players, seed=seed)
        self.raw = self.game
        while hasattr(self.raw, "env"):
            self.raw = self.raw.env  # shows each player what is new, without the wrappers' summaries

    @property
    def state(self) -> Any:
        return self.raw.state

    @property
    def anchor(self) -> str:
        return digest(json.dumps(self.state.game_state, sort_keys=True, default=str))

    @property
    def refused(self) -> bool:
        """True if the last move was none; its player has another try."""
        return _refused(self.state)

    def see(self) -> str:
        """Return what is new to the player whose turn it is. It knows what it said itself."""
        with self._own_draws():
            player, told = self.raw.get_observation()
        names = self.state.role_mapping
        lines = [f"[{names.get(who, who)}] {text}" for who, text, _ in told if who != player]
        self.shown[player] += "".join(f"\n{line}" for line in lines)
        return "\n".join(lines)

    def move(self, action: str) -> bool:
        """Make a move; True where the game is over then."""
        with self._own_draws():
            return bool(self.game.step(action)[0])

    def any_move(self, shown: str) -> str:
        """A move that the game takes: of those it listed last, of all it ever named, or by number."""
        for pool in (shown.rpartition("\n[GAME]")[2], shown, " ".join(UNTOLD)):
            moves = sorted(set(BRACKETS.findall(pool)))
            for move in self.rng.sample(moves, len(moves)):
                if self._takes(move):
                    return move
        raise TaskFailure(f"no random move found in {self.id}: set task.params.opponent=path.py:function")

    def _takes(self, move: str) -> bool:
        """Try the move on a copy of the game, and draw nothing for it."""
        tried, draws = copy.deepcopy(self.game), self.draws
        try:
            with self._own_draws():
                tried.step(move)
            told = tried.state.game_info[self.state.current_player_id]
            return not (_refused(tried.state) or told.get("invalid_move"))
        except Exception:  # some games raise at a move that they cannot read
            return False
        finally:
            self.draws = draws

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


def players_of(id: str, kwargs: dict[str, Any], counts: tuple[int, ...]) -> int:
    """The first of these numbers of players that the game starts with."""
    why = ""
    for players in counts:
        try:
            TextArenaGame(id, kwargs, players=players)
            return players
        except UserError:
            raise
        except Exception as error:
            why = why or " ".join(f"{type(error).__name__}: {error}".split())[:300]
    raise UserError(f"TextArena's {id} does not start with {' or '.join(map(str, counts))} players: {why}")


def _refused(state: Any) -> bool:
    return bool(getattr(state, "error_count", 0))


def _made(id: str, kwargs: dict[str, Any]) -> Any:
    # Some games tell what they could not download.
    with extra("textarena", needed_by="task 'textarena'"), contextlib.redirect_stderr(io.StringIO()):
        import textarena
        from textarena.envs.registration import ENV_REGISTRY
    if id not in ENV_REGISTRY:
        raise UserError(f"TextArena has no game {id!r}; {nearest(id, ENV_REGISTRY)}")
    return textarena.make(id, **kwargs)
