"""Records what a model scores with many workflows on real data sets, within a given time: one small file.

    python benchmarks/workflow_record.py MODEL tables.json.gz --minutes 8 \\
        --data gsm8k=gsm8k_test.jsonl math500=math500.jsonl humaneval=HumanEval.jsonl.gz \\
               mbpp=mbpp_sanitized.json hotpotqa=hotpotqa_validate.jsonl drop=drop_validate.jsonl

MODEL is a Hugging Face folder. Each data set has a process with a native engine of its own, all of them on
the same GPU. AFlow's public tests are used where NAME_public_test.jsonl lies beside the data. Splits are
AFlow's, one to four. Workflows are the portfolio and random edits of it, the same in every run of this
script. A table holds those that ran on every task when the time was up. Started again with the same file, it
goes on where it was. `benchmarks/workflow.py --tables FILE` replays searches.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from toolwright.cli import main as toolwright
from toolwright.failures import UserError
from toolwright.workflow.table import RecordedTable, load_tables, save_tables

ROOT = Path(__file__).resolve().parents[1]
LATE_S = 45.0  # that a process may take to end when the time is up


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, help="a Hugging Face folder")
    parser.add_argument("out", type=Path, help="the file of tables")
    parser.add_argument("--data", nargs="+", required=True, metavar="NAME=FILE", help="raw files")
    parser.add_argument("--minutes", type=float, default=8.0, help="of wall time, start included (8)")
    parser.add_argument("--workflows", type=int, default=48, help="of each data set (48)")
    parser.add_argument("--repeats", type=int, default=2, help="the second begins when all have had one (2)")
    parser.add_argument("--tasks", type=int, default=32, help="of the validation split (32)")
    parser.add_argument("--test", type=int, default=64, help="of the test split (64)")
    parser.add_argument("--slots", type=int, default=128, help="replies generated side by side, each (128)")
    parser.add_argument("--context", type=int, default=4096, help="tokens of a conversation (4096)")
    parser.add_argument("--max-tokens", type=int, default=512, help="of a reply (512)")
    parser.add_argument("--temperature", type=float, default=0.7)
    asked = parser.parse_args()
    began = time.monotonic()
    work = asked.out.absolute().with_suffix(".work")
    work.mkdir(parents=True, exist_ok=True)
    running = {}
    for told in asked.data:
        name, _, file = told.partition("=")
        if prepare(name, Path(file), work / "data"):
            return 2
    for name in [told.partition("=")[0] for told in asked.data]:
        left = asked.minutes - (time.monotonic() - began) / 60
        running[name] = start(name, asked, work, minutes=left, processes=len(asked.data))
    made: list[RecordedTable] = []
    for name, process in running.items():
        try:
            process.wait(max(1.0, 60 * asked.minutes + LATE_S - (time.monotonic() - began)))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        try:
            made += load_tables(work / f"{name}.json.gz").values()
        except UserError as error:
            said = (work / f"{name}.log").read_text(errors="replace").strip().splitlines()[-12:]
            print(f"{name}: {error}", *said, sep="\n    ", flush=True)
    if not made:
        return 1
    save_tables(made, asked.out)
    for table in made:
        print(summary(table), flush=True)
    print(f"{asked.out}: {asked.out.stat().st_size:,} bytes, {time.monotonic() - began:.0f} s")
    return 0


def prepare(name: str, file: Path, folder: Path) -> int:
    """Turn a raw file into tasks, with AFlow's public tests if they lie beside it."""
    public = file.with_name(f"{name}_public_test.jsonl")
    folder.mkdir(exist_ok=True)
    if public.is_file():
        shutil.copy(public, folder)
    with contextlib.redirect_stdout(io.StringIO()):
        return toolwright(["data", "prepare", name, "--from", str(file), "--out", str(folder)])


def start(
    name: str, asked: argparse.Namespace, work: Path, *, minutes: float, processes: int
) -> subprocess.Popen[bytes]:
    """Start the recording of one data set. What it says goes to a file."""
    chat = {
        "provider": "engine",
        "model": str(asked.model.absolute()),
        "price": 1,  # so that costs are millions of tokens
        "context": asked.context,
        "slots": asked.slots,
        "timeout_s": 600,
        "limits": f"{{concurrency: {4 * asked.slots}}}",
    }
    words = [
        f"data=[{name}]",
        f"search.folder={work / 'data'}",
        f"search.tasks={asked.tasks}",
        f"search.held_out={asked.test}",
        "executor.name=chat",
        f"executor.chat={{{', '.join(f'{key}: {value}' for key, value in chat.items())}}}",
        f"executor.max_tokens={asked.max_tokens}",
        f"executor.temperature={asked.temperature}",
        f"executor.parallel={asked.slots}",
    ]
    limits = ["--workflows", str(asked.workflows), "--repeats", str(asked.repeats), "--minutes", str(minutes)]
    command = [sys.executable, "-m", "toolwright.cli", "workflow", "record", str(work / f"{name}.json.gz")]
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with (work / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, *limits, *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": threads},
        )


def summary(table: RecordedTable) -> str:
    """One line: the size, the start's score, the best one's, and tokens."""
    means = [sum(sum(row) for row in rows) / sum(len(row) for row in rows) for rows in table.scores]
    tokens = 1e6 * sum(cost for rows in table.costs for row in rows for cost in row)
    return (
        f"{table.name}: {len(means)} workflows × {len(table.columns)} tasks × {table.repeats}, a single call "
        f"{100 * means[0]:.1f} %, the highest of all {100 * max(means):.1f} %, {tokens / 1e6:.2f} M tokens"
    )


if __name__ == "__main__":
    sys.exit(main())
