"""Games of TextArena as environments: alone, and against a fixed player."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.tasks import ENVIRONMENTS, InvalidAction, TaskSet, load
from toolwright.trajectory import Task

from .functions import attempted

pytest.importorskip("textarena", reason="needs the extra 'textarena'")

TASK = Task("t", [])


def made(**settings: Any) -> Any:
    return ENVIRONMENTS.get("textarena").target(**settings)


def tasks(**params: Any) -> TaskSet:
    return load(schema.TaskConfig(name="textarena", params=params, train_size=6, held_out_size=3), seed=0)


def play(seed: int = 3, **settings: Any) -> list[Any]:
    """A whole game by a policy that takes the first move it is shown."""
    world = made(seed=seed, **settings)
    seen = [world.reset(TASK)]
    while len(seen) < 50:
        move = re.findall(r"\[[^\[\]]+\]", seen[-1].text.rpartition("[GAME]")[2])[0]
        seen.append(world.step(move))
        if seen[-1].done:
            break
    return seen


def test_a_game_alone_is_won_by_what_its_hints_say() -> None:
    world = made(id="GuessTheNumber-v0", seed=1)
    assert "between 1 and 20" in world.reset(TASK).text
    low, high, outcome = 1, 20, None
    while outcome is None or not outcome.done:
        guess = (low + high) // 2
        outcome = world.step(f"[{guess}]")
        low, high = (guess + 1, high) if "higher" in outcome.text else (low, guess - 1)
    assert (outcome.reward, outcome.info) == (1.0, {"success": True})
    assert outcome.text.startswith("Congratulations")


@pytest.mark.parametrize("player", [0, 1])
def test_the_opponent_plays_between_two_moves_of_the_policy(player: int) -> None:
    seen = play(id="TicTacToe-v0", players=2, player=player)
    assert f"You are Player {player}" in seen[0].text
    assert f"[Player {1 - player}]" in seen[-2].text
    assert f"[Player {player}]" not in "".join(one.text for one in seen)
    assert seen[-1].reward in (-1.0, 0.0, 1.0)
    assert seen[-1].info == {"success": seen[-1].reward == 1.0}


def test_a_game_is_the_same_for_the_same_seed_whatever_is_drawn_beside_it() -> None:
    first = play(id="TicTacToe-v0", players=2, player=1)
    random.seed(99)
    before = random.getstate()
    assert play(id="TicTacToe-v0", players=2, player=1) == first
    assert random.getstate() == before
    assert play(seed=4, id="TicTacToe-v0", players=2, player=1) != first


@pytest.mark.parametrize("id", ["ConnectFour-v0", "KuhnPoker-v0", "Nim-v0", "PigDice-v0", "Othello-v0-tiny"])
def test_a_random_opponent_finds_moves_that_the_game_takes(id: str) -> None:
    world = made(id=id, seed=5, players=2, player=1)
    world.reset(TASK)
    assert not world.game.state.game_info[0]["invalid_move"]
    assert world.game.state.current_player_id == 1


def test_an_invalid_move_is_reported_and_a_second_one_loses() -> None:
    world = made(id="TicTacToe-v0", players=2, seed=0)
    world.reset(TASK)
    with pytest.raises(InvalidAction, match="attempted an invalid move"):
        world.step("the corner")
    outcome = world.step("[77]")
    assert (outcome.reward, outcome.done) == (-1.0, True)


def test_the_other_player_can_be_a_function(tmp_path: Path) -> None:
    rule = tmp_path / "rule.py"
    rule.write_text(
        "import re\n"
        "def first_free(shown):\n"
        "    return re.findall(r'\\[\\d\\]', shown.rpartition('Available')[2])[0]\n"
    )
    world = made(id="TicTacToe-v0", players=2, player=1, opponent=f"{rule}:first_free")
    assert "[Player 0] [0]" in world.reset(TASK).text
    found = tasks(opponent=f"{rule}:first_free").train[0].extra_info["environment"]
    assert found["opponent"] == f"{rule}:first_free"


def test_the_policy_plays_both_sides_each_in_a_conversation_of_its_own() -> None:
    world = made(id="TicTacToe-v0", players=2, player=1, opponent="policy")
    talks: list[list[dict[str, Any]]] = []

    def ask(messages: list[dict[str, Any]]) -> str:
        talks.append([dict(one) for one in messages])
        return str(re.findall(r"\[\d\]", messages[-1]["content"].rpartition("Available")[2])[-1])

    world.use_policy(ask)
    seen = world.reset(Task("t", [{"role": "system", "content": "Play."}]))
    assert "[Player 0] [8]" in seen.text
    outcome = world.step("[0]")
    while not outcome.done:
        move = re.findall(r"\[\d\]", outcome.text.rpartition("Available")[2])[0]
        outcome = world.step(move)
    assert [one["role"] for one in talks[1]] == ["system", "user", "assistant", "user"]
    assert "You are Player 0" in talks[0][1]["content"]
    assert "[Player 1] [0]" in talks[1][-1]["content"]
    assert talks[1][:2] == talks[0]


def test_an_attempt_at_self_play_trains_one_side_and_draws_the_same_again() -> None:
    found = tasks(opponent="policy")
    assert {task.extra_info["environment"]["opponent"] for task in found.train} == {"policy"}
    assert {task.extra_info["environment"]["opponent"] for task in found.held_out} == {"random"}
    first, again = (attempted(found.train[:2], lambda _: ["[4]", "[0]", "[2]", "[6]"]) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert one.failure is None
        assert [s.tokens for s in one.segments] == [s.tokens for s in other.segments]
        assert "You are Player 0" in one.segments[0].text or "You are Player 1" in one.segments[0].text
        assert one.reward in (-1.0, 0.0, 1.0)
        assert len(one.sequences) == 1


def test_tasks_are_seeds_of_games_on_either_side() -> None:
    found = tasks()
    worlds = [task.extra_info["environment"] for task in (*found.train, *found.held_out)]
    assert len({world["seed"] for world in worlds}) == 9
    assert {world["player"] for world in worlds} == {0, 1}
    assert "player" not in tasks(id="GuessTheNumber-v0").train[0].extra_info["environment"]


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"id": "TicTacTo-v0"}, "TextArena has no game 'TicTacTo-v0'; did you mean 'TicTacToe-v0'"),
        ({"id": "SecretMafia-v0"}, "does not start with 1 or 2 players"),
        ({"id": "TicTacToe-v0", "players": 1}, "does not start with 1 players"),
        ({"players": 3}, "players"),
        ({"opponent": "nobody.py:plays"}, "nobody.py"),
        ({"kwargs": {"colour": 1}}, "unexpected keyword argument 'colour'"),
    ],
)
def test_what_cannot_be_played_is_reported(params: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        tasks(**params)
