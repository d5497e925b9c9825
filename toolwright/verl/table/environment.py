"""`env.*` and the invalid-action penalty of verl-agent: environments that are played turn by turn."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

from toolwright.verl.config import VerlConfig
from toolwright.verl.table.data import WORLD, makes_tasks
from toolwright.verl.table.rollout import TURNS
from toolwright.verl.translation import Translation

SOKOBAN = "env.sokoban."
SEED, HISTORY = "env.seed", "env.history_length"
HELD_OUT = "env.alfworld.eval_dataset"
PENALISED = "actor_rollout_ref.actor.use_invalid_action_penalty"
PENALTY = "actor_rollout_ref.actor.invalid_action_penalty_coef"
OWN = "write it as an environment of yours: `task.name=path.py:name` (docs/write-your-own-environment.md)"
TAGS = {"RAGEN": "answer"}


@dataclass(frozen=True)
class PlayedWorld:
    """The task that stands for an environment of verl-agent, and how it differs."""

    task: str
    differs: str
    success: float = 10.0  # what verl-agent gives for it, where the task here gives 1
    package: str | None = None  # that has to be installed


TENTH = "success earns 1, where verl-agent gives 10, so the penalty of an invalid action is a tenth as well"
CARDS = "actions stand in `<action>` tags, where verl-agent reads them from JSON"
WORLDS = {
    "sokoban": PlayedWorld("sokoban", f"levels of its own, without a price of a turn; {TENTH}"),
    "webshop": PlayedWorld(
        "shop",
        "a shop of its own, with WebShop's actions; what fits in part is paid in part, where verl-agent "
        f"pays whole success alone; {TENTH}",
    ),
    "alfworld/alfredtwenv": PlayedWorld("alfworld", TENTH, package="alfworld"),
    "gym_cards/numberline-v0": PlayedWorld("gymnasium", CARDS, 1.0, "gym_cards"),
    "gym_cards/blackjack-v0": PlayedWorld("gymnasium", CARDS, 1.0, "gym_cards"),
    "gym_cards/ezpoints-v0": PlayedWorld("gymnasium", CARDS, 1.0, "gym_cards"),
    "gym_cards/points24-v0": PlayedWorld("gymnasium", CARDS, 1.0, "gym_cards"),
}
# RAGEN keeps all turns of an attempt in one sequence too, and reads an action from `<answer>`.
WORLDS_OF_RAGEN = {
    "sokoban": PlayedWorld(
        "sokoban",
        "levels of its own; success earns 1, and a move costs nothing, where RAGEN pays 10, 1 for a box, and "
        "takes 0.1 for a move; so the penalty of an invalid action is a tenth as well",
    ),
    "webshop": PlayedWorld("shop", "a shop of its own, with WebShop's actions", 1.0),
}
REFUSED = {
    "alfworld/alfredthorenv": "it needs the simulator AI2-THOR and a display; use alfworld/AlfredTWEnv",
    "appworld": "its apps are a server of their own; set up its server, and " + OWN,
}
NUMBERS = [str(number) for number in range(1, 11)]
FORMULA = (
    "The image shows cards and a formula. Build one that makes {}, with each card's number once: A is 1, "
)
FORMULA += "J, Q and K are 10. Each turn you add one number or sign; = ends it."
# The actions of each game in the order of its numbers, and what the policy is told.
GAMES = {
    "numberline": (["-", "+"], "Bring the current number to the target: say - or +."),
    "blackjack": (["stand", "hit"], "The image shows a hand of blackjack, yours below: say hit or stand."),
    "ezpoints": ([*NUMBERS, *"+*="], FORMULA.format(12)),
    "points24": ([*NUMBERS, *"+-*/()="], FORMULA.format(24)),
}


def world(verl: VerlConfig, to: Translation) -> None:
    """The task that has the environment; verl-agent's actions stand in `<action>` tags."""
    if verl[WORLD] is not None and verl.family != "RAGEN":
        to.near(
            "all turns of an attempt stay in view, in one sequence, where each of "
            "verl-agent's begins anew with the last ones in its prompt",
            HISTORY,
        )
    if makes_tasks(verl) or (verl[WORLD] is not None and not verl.is_set("data.seed")):
        to.set("run.seed", int(verl[SEED]), SEED)
    if not makes_tasks(verl):
        return
    name, typed = str(verl[WORLD]).lower(), verl.as_typed(WORLD)
    if name not in WORLDS:
        reason = REFUSED.get(name, f"there is no such environment; {OWN}")
        to.refuse(f"{typed}: {reason}")
        return
    found = _played(verl) or WORLDS[name]
    to.set("task.name", found.task, WORLD)
    to.set("task.params.action_tag", TAGS.get(verl.family, "action"), WORLD)
    to.set("rollout.agent", "environment", WORLD)
    to.near(f"{typed}: {found.differs}")
    if found.package and importlib.util.find_spec(found.package) is None:
        to.note(f"{typed}: needs the package {found.package}, which is not installed")
    if found.task == "sokoban":
        _sokoban(verl, to)
    elif found.task == "alfworld":
        _alfworld(verl, to)
    elif found.task == "gymnasium":
        actions, told = GAMES[name.partition("/")[2].partition("-")[0]]
        to.set("task.params.id", f"{found.package}:{verl[WORLD]}", WORLD)
        to.set("task.params.actions", actions, WORLD)
        to.set("task.params.instructions", told, WORLD)
    to.set("rollout.max_turns", verl.number(TURNS), TURNS)


def _sokoban(verl: VerlConfig, to: Translation) -> None:
    rows, columns = (int(side) for side in verl[f"{SOKOBAN}dim_room"])
    size = max(3, min(rows, columns) - 2)  # its room counts the walls around
    to.set("task.params.size", size, f"{SOKOBAN}dim_room")
    for key, ours in (("num_boxes", "boxes"), ("search_depth", "pulls")):
        to.set(f"task.params.{ours}", int(verl[f"{SOKOBAN}{key}"]), f"{SOKOBAN}{key}")
    if verl[f"{SOKOBAN}mode"] == "rgb_array":
        to.set("task.params.images", True, f"{SOKOBAN}mode")


def _alfworld(verl: VerlConfig, to: Translation) -> None:
    verl.lacks(os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld")
    rooms = "unseen" if verl[HELD_OUT] == "eval_out_of_distribution" else "seen"
    to.set("task.params.rooms", rooms, HELD_OUT)


def _played(verl: VerlConfig) -> PlayedWorld | None:
    worlds = WORLDS_OF_RAGEN if verl.family == "RAGEN" else WORLDS
    return worlds.get(str(verl[WORLD]).lower())


def reward_share(verl: VerlConfig) -> float:
    """The part of verl-agent's reward, or of RAGEN's, that an attempt earns here."""
    found = _played(verl)
    return 1.0 if found is None else 1 / found.success


def penalty(verl: VerlConfig, to: Translation) -> None:
    found = _played(verl)
    if found is not None and verl[PENALISED]:
        price = float(verl[PENALTY]) / found.success
        if verl.family != "RAGEN":
            to.near(
                "an invalid action lowers what the whole attempt earns, where "
                "verl-agent takes it from that turn alone",
                PENALTY,
            )
        to.set("task.params.invalid_penalty", price, PENALISED, PENALTY)
    elif verl[WORLD] == "search" and verl[PENALISED]:
        words = f"{verl.as_typed(PENALISED)}, {verl.as_typed(PENALTY)}"
        to.near(f"{words}: a turn that neither searches nor answers costs nothing")
