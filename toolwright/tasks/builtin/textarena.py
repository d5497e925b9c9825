"""Games of TextArena, alone or against another player. arXiv 2504.11442."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from toolwright.failures import UserError, extra, nearest
from toolwright.tasks import ENVIRONMENTS, TASKS, Outcome
from toolwright.tasks.game import Game, game_tasks
from toolwright.tasks.worlds import digest

BRACKETS = re.compile(r"\[[^\[\]]+\]")  # how moves are written
UNTOLD = [f"[{n}]" for n in range(16)] + [f"[{a} {b}]" for a in range(8) for b in range(8)]


@ENVIRONMENTS.register("textarena")
@dataclass(kw_only=True)
class TextArena(Game):
    """`id` and `kwargs` as `textarena.make` takes them."""

    id: str = "TicTacToe-v0"
    kwargs: dict[str, Any] | None = None

    def start(self) -> None:
        # Some games tell what they could not download.
        with extra("textarena", needed_by="task 'textarena'"), contextlib.redirect_stderr(io.StringIO()):
            import textarena
            from textarena.envs.registration import ENV_REGISTRY
        if self.id not in ENV_REGISTRY:
            raise UserError(f"TextArena has no game {self.id!r}; {nearest(self.id, ENV_REGISTRY)}")
        self.played = self.game = textarena.make(self.id, **(self.kwargs or {}))
        self.played.reset(num_players=self.players, seed=self.seed)
        while hasattr(self.game, "env"):
            self.game = self.game.env  # shows each player what is new, without the wrappers' summaries

    @property
    def turn(self) -> int | None:
        return None if self.game.state.done else int(self.game.state.current_player_id)

    @property
    def anchor(self) -> str:
        return digest(json.dumps(self.game.state.game_state, sort_keys=True, default=str))

    def see(self) -> str:
        player, told = self.game.get_observation()
        names = self.game.state.role_mapping  # the player knows what it said itself
        return "\n".join(f"[{names.get(who, who)}] {text}" for who, text, _ in told if who != player)

    def move(self, action: str) -> bool:
        about = self.game.state.game_info[self.turn]
        self.played.step(action)
        return not (getattr(self.game.state, "error_count", 0) or about.get("invalid_move"))

    def moves(self, shown: str) -> Iterable[Sequence[str]]:
        """The moves that the game listed last, all that it ever named, or numbers."""
        return BRACKETS.findall(shown.rpartition("\n[GAME]")[2]), BRACKETS.findall(shown), UNTOLD

    def end(self, player: int) -> Outcome:
        about, rewards = self.game.state.game_info[player], self.game.state.rewards or {}
        reward = float(rewards.get(player, 0.0))
        return Outcome(str(about.get("reason") or "The game is over."), reward, info={"success": reward >= 1})


INSTRUCTIONS = "Answer with your move and nothing else."
textarena = TASKS.register("textarena")(game_tasks("textarena", TextArena, instructions=INSTRUCTIONS))
