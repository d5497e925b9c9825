"""`env.*` and the invalid-action penalty of verl-agent: environments that are played turn by turn."""

from __future__ import annotations

from collections.abc import Iterator

from toolwright.verl.config import VerlConfig
from toolwright.verl.row import KeyRow, Near, Outcome, TranslatedSetting, TranslationProblem, part
from toolwright.verl.table.data import WORLD, makes_tasks
from toolwright.verl.table.rollout import samples

SOKOBAN = "env.sokoban."
TURNS, SEED, HISTORY = "env.max_steps", "env.seed", "env.history_length"
PENALISED = "actor_rollout_ref.actor.use_invalid_action_penalty"
PENALTY = "actor_rollout_ref.actor.invalid_action_penalty_coef"
WORLDS = {"sokoban": "sokoban", "webshop": "shop"}
OWN = "write it as an environment of yours: `task.name=path.py:name` (docs/write-your-own-environment.md)"
IMAGES = ("gym_cards", "ezpoints", "points24", "numberline", "blackjack", "androidworld", "alfredthorenv")
TAG = "action"


def world(verl: VerlConfig) -> Iterator[Outcome]:
    """The task that has the environment; verl-agent's actions stand in `<action>` tags."""
    if not makes_tasks(verl):
        return
    name = str(verl[WORLD]).lower()
    if any(word in name for word in IMAGES) or (name == "sokoban" and verl[f"{SOKOBAN}mode"] == "rgb_array"):
        mode = f", {verl.as_typed(f'{SOKOBAN}mode')}" if name == "sokoban" else ""
        yield TranslationProblem(
            f"{verl.as_typed(WORLD)}{mode}: an environment that shows images, which is not here; {OWN}"
        )
        return
    if name not in WORLDS:
        yield TranslationProblem(f"{verl.as_typed(WORLD)}: there is no such environment; {OWN}")
        return
    yield TranslatedSetting("task.name", WORLDS[name], (WORLD,))
    yield TranslatedSetting("task.params.action_tag", TAG, (WORLD,))
    yield TranslatedSetting("rollout.agent", "environment", (WORLD,))
    if name == "webshop":
        yield Near(f"{verl.as_typed(WORLD)}: a shop of its own, with WebShop's actions and reward")
    else:
        yield from _sokoban(verl)
    yield Near(
        f"{verl.as_typed(HISTORY)}: all turns of an attempt stay in view, in one sequence, where each of "
        "verl-agent's begins anew with the last ones in its prompt"
    )
    yield TranslatedSetting("rollout.max_turns", verl.number(TURNS), (TURNS,))
    yield TranslatedSetting("run.seed", int(verl[SEED]), (SEED,))


def _sokoban(verl: VerlConfig) -> Iterator[Outcome]:
    rows, columns = (int(side) for side in verl[f"{SOKOBAN}dim_room"])
    size = max(3, min(rows, columns) - 2)  # its room counts the walls around
    yield TranslatedSetting("task.params.size", size, (f"{SOKOBAN}dim_room",))
    yield TranslatedSetting("task.params.boxes", int(verl[f"{SOKOBAN}num_boxes"]), (f"{SOKOBAN}num_boxes",))
    yield TranslatedSetting(
        "task.params.pulls", int(verl[f"{SOKOBAN}search_depth"]), (f"{SOKOBAN}search_depth",)
    )


def penalty(verl: VerlConfig) -> Iterator[Outcome]:
    if makes_tasks(verl) and str(verl[WORLD]).lower() in WORLDS and verl[PENALISED]:
        yield TranslatedSetting("task.params.invalid_penalty", float(verl[PENALTY]), (PENALISED, PENALTY))
    elif verl[WORLD] == "search" and verl.is_set(PENALISED, PENALTY):
        words = f"{verl.as_typed(PENALISED)}, {verl.as_typed(PENALTY)}"
        yield Near(f"{words}: a turn that neither searches nor answers costs nothing")


ROWS: list[KeyRow] = [
    part(
        WORLD,
        ("task.name", "rollout.agent"),
        "`Sokoban` → `sokoban`, `Webshop` → `shop` with `--fit`, `search` → the search agent",
        world,
    ),
    part(TURNS, "rollout.max_turns", "turns of an attempt", world),
    part(SEED, "run.seed", "every random choice follows from it", world),
    part(HISTORY, (), "with `--fit`: all turns of an attempt stay in view", world),
    part("env.rollout.n", "rollout.samples", "attempts at each task; −1: 1", samples),
    part(f"{SOKOBAN}dim_room", "task.params", "`size`: without the walls around", world),
    part(f"{SOKOBAN}num_boxes", "task.params", "`boxes`", world),
    part(f"{SOKOBAN}search_depth", "task.params", "`pulls`", world),
    part(f"{SOKOBAN}mode", (), "text only: `rgb_array` is an error", world),
    part(PENALISED, "task.params", "`invalid_penalty`, with an environment", penalty),
    part(PENALTY, "task.params", "`invalid_penalty`: what an action that is none costs", penalty),
]
