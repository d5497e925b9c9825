"""Score a model on held-out tasks, without any update.

Examples:
  toolwright eval model.path=runs/warm/model task=arithmetic
  toolwright eval model.path=FOLDER task=file task.held_out=test.parquet run.name=NAME      keeps the attempts
  toolwright eval run.name=NAME run.resume=true       the run's own configuration and weights
  toolwright eval eval.samples=8 eval.temperature=1.0 --json
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolwright.config.schema import Config


def main(argv: list[str]) -> int:
    from toolwright.config.launch import launch

    return launch("eval", argv, about=__doc__ or "", start=Start(as_json="--json" in argv))


@dataclass(frozen=True)
class Start:
    as_json: bool

    def __call__(self, config: Config, command: list[str]) -> dict[str, float]:
        from toolwright.trainer.evaluation import evaluate, keeps

        # Not where numbers are read from.
        result = evaluate(config, command=command, say=lambda line: print(line, file=sys.stderr))
        if self.as_json:
            print(json.dumps(result))
            return result
        print(table(result))
        if keeps(config.run):
            run = Path(config.run.dir, str(config.run.name))
            print(f"\nattempts  toolwright view {run} --step 0\nreport    {run / 'report.html'}")
        return result


def table(result: dict[str, float]) -> str:
    """A line for each number, names on the left."""
    width = max((len(name) for name in result), default=0)
    return "\n".join(f"{name:<{width}}  {value:.4g}" for name, value in result.items())
