"""Whether the `code` scorer's verdicts are right, and the same beside a heavy load as alone.

    python benchmarks/verdicts.py --humaneval HumanEval.jsonl.gz --mbpp mbpp.jsonl [--solutions 500]

Every reference solution of the two data sets has to pass. Then solutions, half of them references and half
with one number or comparison changed, are judged two at a time, and all at once beside busy processes.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import copy
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from toolwright.config import schema
from toolwright.rewards import Scorer
from toolwright.sandbox.local import local_server
from toolwright.tasks import rows
from toolwright.tasks.datasets import task_rows
from toolwright.trajectory import Segment, Task, Trajectory

FEW = 2  # judged at a time where nothing else runs
FLIPPED = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq}


class OneChange(ast.NodeTransformer):
    """Changes the first comparison or whole number that it meets: the program still runs, or never ends."""

    def __init__(self) -> None:
        self.changed = False

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        other = FLIPPED.get(type(node.ops[0]))
        if self.changed or other is None:
            return self.generic_visit(node)
        self.changed = True
        node.ops[0] = other()
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if self.changed or type(node.value) is not int:
            return node
        self.changed = True
        return ast.copy_location(ast.Constant(node.value + 1), node)


def reference(row: dict[str, Any]) -> str:
    extra = row["extra_info"]
    return f"{extra.get('declaration') or ''}{extra['solution']}"


def mistaken(row: dict[str, Any]) -> str:
    return ast.unparse(OneChange().visit(ast.parse(reference(row))))


def attempts(found: Sequence[dict[str, Any]], write: Any) -> list[Trajectory]:
    made = []
    for number, row in enumerate(found):
        task = Task(
            str(number), [], row["reward_model"]["ground_truth"], row["data_source"], row["extra_info"]
        )
        answer = Segment("policy", [1], [0.0], f"```python\n{write(row)}\n```")
        made.append(Trajectory(task, "g", segments=[answer]))
    return made


def judged(scorer: Scorer, all_of_them: Sequence[Trajectory], at_once: int) -> list[float | None]:
    for start in range(0, len(all_of_them), at_once):
        asyncio.run(scorer.score(all_of_them[start : start + at_once]))
    return [one.reward for one in all_of_them]


@contextmanager
def busy(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--humaneval", type=Path, required=True)
    parser.add_argument("--mbpp", type=Path, required=True)
    parser.add_argument("--solutions", type=int, default=500)
    parser.add_argument("--busy", type=int, default=8, help="processes that compute meanwhile")
    options = parser.parse_args()
    found = [
        row
        for name in ("humaneval", "mbpp")
        for row in task_rows(name, rows.read(getattr(options, name)), split="test")
    ]
    with local_server("--queue-limit", "20000") as url:
        scorer = Scorer(schema.Reward(sandbox_url=url, timeout_s=3600), default="data_source")
        started = time.monotonic()
        passed = judged(scorer, references := attempts(found, reference), len(found))
        rate = len(found) / (time.monotonic() - started)
        print(f"references: {Counter(passed)[1.0]} of {len(found)} pass, {rate:.0f} a second", flush=True)
        for one in references:
            if one.reward != 1.0:
                print(
                    f"  {one.task.data_source} {one.task.extra['index']}: {one.failure or one.reward_parts}"
                )
        # From all over the two sets.
        chosen = found[:: max(1, 2 * len(found) // options.solutions)][: options.solutions // 2]
        alone = [*attempts(chosen, reference), *attempts(chosen, mistaken)]
        crowded = copy.deepcopy(alone)
        first = judged(scorer, alone, FEW)
        print(f"alone: {Counter(first)}, load {os.getloadavg()[0]:.1f}", flush=True)
        with busy(options.busy):
            second = judged(scorer, crowded, len(crowded))
        print(f"beside {options.busy} busy processes: {Counter(second)}, load {os.getloadavg()[0]:.1f}")
        different = sum(a != b for a, b in zip(first, second, strict=True))
        print(f"different verdicts: {different} of {len(first)}")
        scorer.close()
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
