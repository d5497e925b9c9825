"""Score a model on held-out tasks, without any update: accuracy, pass@k and maj@k with intervals, by source.

Examples:
  toolwright eval model.path=runs/warm/model task=arithmetic
  toolwright eval model.path=FOLDER task=file task.held_out=test.parquet run.name=NAME      keeps the attempts
  toolwright eval run.name=NAME run.resume=true       the run's own configuration and weights
  toolwright eval eval.samples=8 eval.temperature=1.0 --json
  toolwright eval model.path=FOLDER task=gsm8k --against OTHER
                                 compared task by task with a model's folder or a run that was evaluated
  toolwright eval model.path=NEW task=gsm8k --against OLD --gate 2 && toolwright serve NEW
                                 exit code 1 unless NEW is surely no more than 2 points less accurate
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolwright.cli import CommandParser
from toolwright.failures import UserError

if TYPE_CHECKING:
    from toolwright.config.schema import Config
    from toolwright.observe.estimates import PairedDifference
    from toolwright.observe.evaluation import EvaluationResult

AGAINST, GATE = "--against", "--gate"


def main(argv: list[str]) -> int:
    from toolwright.config.launch import launch

    parser = CommandParser(prog="toolwright eval", add_help=False, allow_abbrev=False)
    for option in (AGAINST, GATE):
        parser.add_argument(option)
    own, words = parser.parse_known_args(argv)
    start = Start("--json" in argv, own.against, _points(own.gate, own.against))
    code = launch("eval", words, about=__doc__ or "", start=start)
    return 1 if start.stopped else code


@dataclass
class Start:
    as_json: bool
    against: str | None = None
    gate: float | None = None
    stopped: bool = False  # at the gate

    def __call__(self, config: Config, command: list[str]) -> dict[str, float]:
        from toolwright.observe.console import make_console
        from toolwright.observe.evaluation import differences
        from toolwright.observe.evaluation_table import show_differences, show_evaluation
        from toolwright.trainer.evaluation import evaluate, keeps

        other = None if self.against is None else _kept(self.against)
        result = evaluate(config, command=command, say=_say)
        figures = result.metrics(whole=True)
        if self.against is not None and other is None:
            other = evaluate(_with_model(config, self.against), command=command, say=_say)
        paired = differences(other, result) if other else {}
        if self.as_json:
            compared = {s: {name: asdict(one) for name, one in own.items()} for s, own in paired.items()}
            print(json.dumps({**figures, **({"against": compared} if other else {})}))
            self._check(paired)
            return figures
        console = make_console()
        show_evaluation(console, result)
        if other:
            console.print()
            show_differences(
                console, paired, first=str(self.against), second="this one", samples=result.samples
            )
        if keeps(config.run):
            run = Path(config.run.dir, str(config.run.name))
            print(f"\nattempts  toolwright view {shlex.quote(str(run))} --step 0")
            print(f"report    {run / 'report.html'}")
        self._check(paired)
        return figures

    def _check(self, paired: dict[str, dict[str, PairedDifference]]) -> None:
        """Say whether the model passes: the whole interval must lie above what it may lose. Few tasks make a
        wide interval, so a model that was hardly tried does not pass."""
        if self.gate is None:
            return
        if "" not in paired:
            raise UserError(f"{GATE}: the two evaluations have no tasks in common")
        found = paired[""]["accuracy"]
        self.stopped = 100 * found.low < -self.gate
        verdict = "closed" if self.stopped else "open"
        _say(
            f"gate {verdict}: accuracy {100 * found.difference:+.1f} points over {found.tasks} tasks, with "
            f"97.5 % certainty at least {100 * found.low:+.1f}; allowed is {-self.gate:+.1f}"
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr)  # not where numbers are read from


def _points(gate: str | None, against: str | None) -> float | None:
    if gate is None:
        return None
    try:
        points = float(gate)
    except ValueError:
        points = -1.0
    if not 0 <= points <= 100:
        raise UserError(f"{GATE} {gate}: expected the points that accuracy may fall by, from 0 to 100")
    if against is None:
        raise UserError(f"{GATE} compares two models; name the other one with {AGAINST} OTHER")
    return points


def _kept(other: str) -> EvaluationResult | None:
    """The last evaluation of the run `other`; None if that is a model, which is evaluated first."""
    from toolwright.cli.view import find_run
    from toolwright.observe.evaluation import last_evaluation
    from toolwright.observe.run_folders import is_run

    folder = Path(other)
    if (folder / "config.json").is_file() and not is_run(folder):
        return None
    return last_evaluation(find_run(other))


def _with_model(config: Config, folder: str) -> Config:
    """The same evaluation of another model; its attempts are not kept."""
    return config.changed({"model.path": folder, "run.name": None, "run.resume": False})
