"""Take a stored step again without sampling: with another reward, or with another algorithm.

Examples:
  toolwright replay RUN --step 40 reward.function=my_reward.py:score      who earns something else
  toolwright replay RUN --step 40 algorithm=dr_grpo                       whose advantage changes its sign
  toolwright replay RUN --step 40 algorithm=gspo update.epochs=2 --update how the update would differ
  toolwright replay RUN --step 40 --update                                the run's own update once more
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from toolwright.cli import CommandParser
from toolwright.cli.view import find_run
from toolwright.failures import UserError
from toolwright.observe.attempt import question, visible
from toolwright.observe.console import make_console, plain_table
from toolwright.observe.numbers import compact

if TYPE_CHECKING:
    from toolwright.config.schema import Config
    from toolwright.trainer.replayed_step import ReplayedStep, StepOutcome

MAY_CHANGE = ("reward", "algorithm", "update")
ALSO = ("run.threads", "model.device")
MOST_ROWS = 24  # without --full
SHOWN = (
    "policy/loss",
    "policy/ppo_kl",
    "policy/grad_norm",
    "policy/entropy",
    "policy/clip_fraction",
    "reference/kl",
    "critic/loss",
    "log_prob/change_mean",
    "log_prob/change_abs",
)


def main(argv: list[str]) -> int:
    arguments = _parser().parse_intermixed_args(argv)
    run = find_run(arguments.run)
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run} has no config.yaml: it is not a run folder")
    for word in arguments.overrides:
        key = word.partition("=")[0].lstrip("+~")
        if key.split(".")[0] not in MAY_CHANGE and key not in ALSO:
            blocks = ", ".join(f"{block}.*" for block in MAY_CHANGE)
            raise UserError(f"{word}: a replay does not sample; it takes algorithm=NAME, {blocks}")
    from toolwright.config.compose import resolve_from_run
    from toolwright.trainer.replayed_step import StoredStep, replay

    own: Any = resolve_from_run(run).config
    changed: Config | Any = resolve_from_run(run, arguments.overrides).config
    found = replay(StoredStep(run, arguments.step, own), changed, update=arguments.update)
    if arguments.json:
        print(json.dumps(_as_json(found), indent=2))
    else:
        _show(found, full=arguments.full)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="toolwright replay", description=__doc__)
    parser.add_argument("run", metavar="RUN", help="a run folder, or its name under runs/")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="the setting to try")
    parser.add_argument("--step", type=int, required=True, metavar="N", help="the step to repeat")
    parser.add_argument("--update", action="store_true", help="make the update, and measure it")
    parser.add_argument(
        "--full", action="store_true", help="show every attempt, also those that do not change"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    return parser


@dataclass(frozen=True)
class AttemptChange:
    """An attempt before and after the change. An advantage is the mean over its tokens; None: not learned
    from."""

    group: str
    index: int
    question: str
    reward: float | None
    new_reward: float | None
    advantage: float | None
    new_advantage: float | None
    signs: float  # the part of its tokens whose advantage changes its sign

    @property
    def rewarded(self) -> bool:
        """True if the reward changed."""
        if self.reward is None or self.new_reward is None:
            return self.reward is not self.new_reward
        return not math.isclose(self.reward, self.new_reward, rel_tol=1e-9, abs_tol=1e-12)

    @property
    def turned(self) -> bool:
        return self.signs > 0

    @property
    def selected(self) -> bool:
        """True if only one of the two learns from it."""
        return (self.advantage is None) != (self.new_advantage is None)


def changes(found: ReplayedStep) -> list[AttemptChange]:
    return [
        AttemptChange(
            group=t.group,
            index=t.index,
            question=question(t.task, most=200),
            reward=found.before.rewards[row],
            new_reward=found.after.rewards[row],
            advantage=_mean(found.before, row),
            new_advantage=_mean(found.after, row),
            signs=_signs(found, row),
        )
        for row, t in enumerate(found.attempts)
    ]


def _mean(outcome: StepOutcome, row: int) -> float | None:
    given = outcome.advantages[row]
    return None if given is None else float(given.mean())


def _signs(found: ReplayedStep, row: int) -> float:
    import numpy as np

    before, after = found.before.advantages[row], found.after.advantages[row]
    if before is None or after is None:
        return 0.0
    return float(np.mean(np.sign(before) != np.sign(after)))


def _summary(every: list[AttemptChange]) -> list[str]:
    """A line for each kind of change."""
    counts = {
        "earn another reward": sum(one.rewarded for one in every),
        "have an advantage whose sign changes": sum(one.turned for one in every),
        "are learned from that were not": sum(one.selected and one.advantage is None for one in every),
        "are no longer learned from": sum(one.selected and one.new_advantage is None for one in every),
    }
    return [f"{count} of {len(every)} attempts {what}" for what, count in counts.items() if count] or [
        f"none of {len(every)} attempts changes its reward or the sign of its advantage"
    ]


def _show(found: ReplayedStep, *, full: bool) -> None:
    from rich.text import Text

    console = make_console()
    every = changes(found)
    changed = every if full else [one for one in every if one.rewarded or one.turned or one.selected]
    shown = changed if full else changed[:MOST_ROWS]
    if shown:
        table = plain_table()
        for name in ("group", "attempt", "reward", "", "new", "advantage", "", "new", "signs"):
            table.add_column(name, justify="left" if name == "group" else "right", no_wrap=True)
        table.add_column("task", overflow="ellipsis", no_wrap=True)
        for one in shown:
            table.add_row(
                Text(visible(one.group)),
                str(one.index),
                _number(one.reward, "failed"),
                "→" if one.rewarded else "",
                Text(_number(one.new_reward, "failed"), style="bold" if one.rewarded else "dim"),
                _number(one.advantage, "left out"),
                "→",
                Text(_number(one.new_advantage, "left out"), style="bold" if one.turned else ""),
                f"{100 * one.signs:.0f} %" if one.signs else "",
                Text(one.question),
            )
        console.print(table)
        if len(shown) < len(changed):
            console.print(Text(f"{len(changed) - len(shown)} more; --full shows them", style="dim"))
        console.print()
    for line in _summary(every):
        console.print(line)
    if found.after.update:
        console.print()
        table = plain_table("update", "recorded>", "the run's own, again>", "replayed>")
        columns = (found.recorded, found.before.update, found.after.update)
        for name in SHOWN:
            if any(name in column for column in columns):
                table.add_row(name, *(_number(column.get(name), "-") for column in columns))
        console.print(table)
    for note in found.notes:
        console.print(Text(note, style="dim"))


def _number(value: float | None, missing: str) -> str:
    return missing if value is None else compact(value)


def _as_json(found: ReplayedStep) -> dict[str, Any]:
    every = changes(found)
    return {
        "attempts": [
            {**asdict(one), "rewarded": one.rewarded, "turned": one.turned, "selected": one.selected}
            for one in every
        ],
        "update": {"recorded": found.recorded, "own": found.before.update, "replayed": found.after.update},
        "notes": found.notes,
    }
