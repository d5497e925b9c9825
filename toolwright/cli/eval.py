"""Score a model on held-out tasks, without any update: accuracy, pass@k and maj@k with intervals, by source.

Examples:
  toolwright eval model.path=runs/warm/model task=arithmetic
  toolwright eval model.path=FOLDER task=file task.held_out=test.parquet run.name=NAME      keeps the attempts
  toolwright eval run.name=NAME run.resume=true       the run's own configuration and weights
  toolwright eval eval.samples=8 eval.temperature=1.0 --json
  toolwright eval model.path=FOLDER task=gsm8k --against OTHER
                                 compared task by task with a model's folder or a run that was evaluated
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolwright.failures import UserError

if TYPE_CHECKING:
    from toolwright.config.schema import Config
    from toolwright.observe.evaluation import EvaluationResult

AGAINST = "--against"


def main(argv: list[str]) -> int:
    from toolwright.config.launch import launch

    words, against = _taken_out(argv)
    return launch("eval", words, about=__doc__ or "", start=Start("--json" in argv, against))


@dataclass(frozen=True)
class Start:
    as_json: bool
    against: str | None = None

    def __call__(self, config: Config, command: list[str]) -> dict[str, float]:
        from toolwright.observe.evaluation import differences
        from toolwright.observe.evaluation_table import show_differences, show_evaluation
        from toolwright.observe.listing import make_console
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
            print(f"\nattempts  toolwright view {run} --step 0\nreport    {run / 'report.html'}")
        return figures


def _say(line: str) -> None:
    print(line, file=sys.stderr)  # not where numbers are read from


def _taken_out(argv: list[str]) -> tuple[list[str], str | None]:
    """The words without `--against OTHER`, and OTHER."""
    words, other = [], None
    rest = iter(argv)
    for word in rest:
        if word == AGAINST:
            other = next(rest, None)
            if other is None:
                raise UserError(f"{AGAINST} needs a model's folder, or a run that was evaluated")
        elif word.startswith(f"{AGAINST}="):
            other = word.partition("=")[2]
        else:
            words.append(word)
    return words, other


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
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"path": folder}),
            "run": config.run.model_copy(update={"name": None, "resume": False}),
        }
    )
