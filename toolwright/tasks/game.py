"""Games by turns as environments: the policy is one player, and plays alone or against another."""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from toolwright.failures import TaskFailure, UserError
from toolwright.registry import absolute, load_object, signature_of
from toolwright.tasks import Builder, InvalidAction, Observation, Outcome, SplitSizes, TaskSet
from toolwright.tasks.worlds import InvalidPenalty, by_seed
from toolwright.trajectory import Task

Player = Callable[[str], str]  # what a player has been shown -> its move
_drawing = threading.Lock()


@dataclass(kw_only=True)
class Game:
    """A game for `players`, of whom the policy is number `player`. The other is `opponent`: "random", which
    makes any move that the game takes, "policy", the policy itself as it is now, or a function,
    `path.py:name`.

    A subclass has the methods below. They may draw from Python's `random`: a game has draws of its own there,
    as if it ran alone.
    """

    seed: int = 0
    players: int = 1
    player: int = 0
    opponent: str = "random"

    def start(self) -> None:
        """Set the game up."""
        raise NotImplementedError

    @property
    def turn(self) -> int | None:
        """The number of the player to move; None if the game is over."""
        raise NotImplementedError

    @property
    def anchor(self) -> str | None:
        """The name of the state, equal for equal states."""
        raise NotImplementedError

    def see(self) -> str:
        """What is new to the player to move."""
        raise NotImplementedError

    def move(self, action: str) -> bool:
        """Make a move. Return False if it is not legal: the same player tries again, or has lost by it."""
        raise NotImplementedError

    def moves(self, shown: str) -> Iterable[Sequence[str]]:
        """What a random player tries, after what it has been shown: all of the first list before the next."""
        raise NotImplementedError

    def end(self, player: int) -> Outcome:
        """What the end of the game is to a player."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._draws = self.rng.getstate()
        self._shown = dict.fromkeys(range(self.players), "")  # to each player, from the start
        self._heard = 0  # characters of what the policy's other side was shown
        ours: dict[str, Player] = {"random": self._any_move, "policy": self._own_move}
        self._other: Player = ours.get(self.opponent) or load_object(self.opponent)
        with self._own_draws():
            self.start()

    def use_policy(self, ask: Callable[[list[dict[str, Any]]], str]) -> None:
        self._ask = ask

    def reset(self, task: Task) -> Observation:
        self._other_side = [dict(message) for message in task.prompt]  # the conversation of that side
        return Observation(self._until_our_turn(), self.anchor)

    def step(self, action: str) -> Outcome:
        if not self._moved(action) and self.turn is not None:
            raise InvalidAction(self._seen())
        seen = self._until_our_turn()
        outcome = Outcome(seen) if self.turn is not None else replace(self.end(self.player), done=True)
        return replace(outcome, anchor=self.anchor)

    def _until_our_turn(self) -> str:
        """Let the opponent play, and return what the policy is shown then."""
        while (turn := self.turn) is not None and turn != self.player:
            self._seen()
            self._moved(str(self._other(self._shown[turn])))
        return "" if self.turn is None else self._seen()

    def _seen(self) -> str:
        player = self.turn
        assert player is not None, "a game that is over has no observation"
        with self._own_draws():
            new = self.see()
        self._shown[player] += f"\n{new}" if new else ""
        return new

    def _moved(self, action: str) -> bool:
        with self._own_draws():
            return self.move(action)

    def _any_move(self, shown: str) -> str:
        for moves in self.moves(shown):
            distinct = sorted(set(moves))
            for move in self.rng.sample(distinct, len(distinct)):
                with contextlib.suppress(Exception):  # some games raise at a move that they cannot read
                    if copy.deepcopy(self)._moved(move):
                        return move
        raise TaskFailure("no random move found: set task.params.opponent=path.py:function")

    def _own_move(self, shown: str) -> str:
        """The policy's, in a conversation of its own, as the other player has."""
        self._other_side.append({"role": "user", "content": shown[self._heard :].strip()})
        self._heard = len(shown)
        said = self._ask(self._other_side)
        self._other_side.append({"role": "assistant", "content": said})
        return said

    @contextlib.contextmanager
    def _own_draws(self) -> Iterator[None]:
        with _drawing:
            others = random.getstate()
            random.setstate(self._draws)
            try:
                yield
            finally:
                self._draws = random.getstate()
                random.setstate(others)


def game_tasks(name: str, game: Callable[..., Game], *, instructions: str) -> Builder:
    """Make what builds the tasks of a game, which is the environment of that name. Their settings are those
    of the game, and how it is played."""

    def tasks(
        *,
        sizes: SplitSizes,
        players: Annotated[int | None, Field(ge=1, le=2)] = None,
        opponent: str = "random",
        held_out_opponent: str | None = None,
        instructions: str = instructions,
        action_tag: str | None = None,
        invalid_penalty: InvalidPenalty = 0.0,
        **settings: Any,
    ) -> TaskSet:
        """Games by seed. `players`: None asks the game. Of two, the policy plays either in turn. With
        `opponent=policy` it learns by playing itself. `held_out_opponent` is who it is judged against; None:
        the same, or random in place of itself."""
        other = _found(opponent)
        judge = _found(held_out_opponent or ("random" if other == "policy" else other))
        count = _players(name, game, settings, (1, 2) if players is None else (players,))

        def side(rng: random.Random) -> dict[str, Any]:
            return {"players": 2, "player": rng.randrange(2), "opponent": other} if count == 2 else {}

        made = by_seed(
            name,
            settings,
            sizes=sizes,
            instructions=instructions,
            action_tag=action_tag,
            invalid_penalty=invalid_penalty,
            level=side,
        )
        if count == 2 and judge != other:
            made = replace(made, held_out=[_against(judge, task) for task in made.held_out])
        return made

    shared = [p for p in signature_of(tasks).parameters.values() if p.name != "settings"]
    sides = {"seed", *(p.name for p in signature_of(Game).parameters.values())}
    own = [p for p in signature_of(game).parameters.values() if p.name not in sides]
    tasks.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
    return tasks


def _players(name: str, game: Callable[..., Game], settings: dict[str, Any], counts: Sequence[int]) -> int:
    """The first of these numbers of players that the game starts with."""
    why = ""
    for players in counts:
        try:
            game(**settings, players=players)
            return players
        except UserError:
            raise
        except Exception as error:
            why = why or " ".join(f"{type(error).__name__}: {error}".split())[:300]
    raise UserError(
        f"{name} with {settings} does not start with {' or '.join(map(str, counts))} players: {why}"
    )


def _found(opponent: str) -> str:
    """The opponent, as it is found from any folder."""
    if opponent in ("random", "policy"):
        return opponent
    load_object(absolute(opponent))
    return absolute(opponent)


def _against(opponent: str, task: Task) -> Task:
    world = {**task.extra_info["environment"], "opponent": opponent}
    return replace(task, extra_info={**task.extra_info, "environment": world})
